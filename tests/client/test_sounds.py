"""A sound becomes the rows that a model of sounds takes."""

from typing import Any

import numpy as np
import pytest

from headwaiter_client import Client, FakeEncoder, InvalidInput, sound_rows
from headwaiter_proto import encoder_pb2 as pb
from tests.support.documents import SEND_IMAGES_AND_SOUNDS, blocks

SOUND = pb.SoundFormat(sampling_rate_hz=16_000, hop=2)


def model_of(sound: pb.SoundFormat | None) -> Any:
    return Client(transport=FakeEncoder(vocabulary_size=0, feature_width=3, sound=sound)).model()


@pytest.mark.parametrize("samples", [[1, 2, 3, 4, 5, 6], np.arange(1, 7, dtype=np.int16), np.arange(1.0, 7.0)])
def test_rows_overlap_and_samples_behind_the_last_complete_row_are_left_out(samples: Any) -> None:
    rows = sound_rows(samples, model_of(SOUND))
    assert rows.dtype == np.float32
    assert rows.tolist() == [[1, 2, 3], [3, 4, 5]]


def test_a_sound_is_scaled_to_mean_0_and_variance_1_if_the_model_wants_it() -> None:
    samples = np.random.default_rng(0).normal(5, 3, 1001).astype(np.float32)
    model = model_of(pb.SoundFormat(sampling_rate_hz=16_000, hop=2, normalized=True))
    rows = sound_rows(samples, model)
    scaled = np.concatenate([rows[0, :1], rows[:, 1:].ravel()])
    assert abs(scaled.mean()) < 1e-5
    assert scaled.std() == pytest.approx(1, abs=1e-4)
    # Silence stays finite.
    assert not sound_rows(np.zeros(9), model).any()


@pytest.mark.parametrize(
    ("samples", "facts"),
    [
        ([1, 2], ["[2]", "3"]),
        ([[1, 2, 3], [4, 5, 6]], ["[2, 3]", "one channel"]),
        (["a", "b", "c"], ["<U1"]),
        ([[1, 2], [3]], ["not an array"]),
        ([0, 1, np.nan], ["sample 2"]),
        ([0, 1e300, 1], ["sample 1"]),
        (np.ma.masked_array([1.0, 2.0, 3.0], [False, True, False]), ["masked"]),
    ],
)
def test_samples_that_are_no_sound_are_refused(samples: Any, facts: list[str]) -> None:
    with pytest.raises(InvalidInput) as caught:
        sound_rows(samples, model_of(SOUND))
    assert all(fact in str(caught.value) for fact in facts)


def test_a_model_without_sounds_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="fake"):
        sound_rows([1, 2, 3], model_of(None))


def test_rows_are_what_the_model_takes() -> None:
    client = Client(transport=FakeEncoder(vocabulary_size=0, feature_width=3, sound=SOUND))
    assert client.encode_features([sound_rows(np.ones(9), client.model())]).lengths.tolist() == [4]


def test_the_function_of_the_page_reads_the_characters_of_ctc() -> None:
    (block,) = (block for block in blocks(SEND_IMAGES_AND_SOUNDS, "python") if "def characters" in block)
    namespace: dict[str, Any] = {}
    exec(compile(block, SEND_IMAGES_AND_SOUNDS.name, "exec"), namespace)
    labels = ("<pad>", "|", "A", "L", "T")
    heard = [1, 4, 4, 2, 0, 3, 3, 0, 3, 1, 1, 2, 0]
    fake = FakeEncoder(
        vocabulary_size=0,
        feature_width=3,
        sound=SOUND,
        labels=labels,
        per_token=True,
        scores=lambda rows: np.eye(len(labels))[heard],
    )
    samples = np.ones(2 * len(heard) + 1, np.float32)
    assert namespace["characters"](Client(transport=fake), samples) == "TALL A"
