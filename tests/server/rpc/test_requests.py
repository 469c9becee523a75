"""A request is read as it was meant, or refused in a sentence that says what is wrong with which sequence."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_server.errors import Failures, HeadwaiterError, InvalidInput, ModelNotFound, SequenceTooLong
from headwaiter_server.models.tokenizer import Truncation
from headwaiter_server.rpc import requests

TOKENS = Manifest(name="tiny", vocabulary_size=10, max_tokens=4, width=8, pooling=pb.POOLING_MEAN)
FEATURES = Manifest(name="tiny", feature_width=2, max_tokens=4, width=8, pooling=pb.POOLING_NONE)
LIMITS = requests.RequestLimits(sequences=3, tokens=8)


def _tokens(values: list[int], lengths: list[int], dtype: Any = pb.DATA_TYPE_INT32, stored: str = "<i4") -> Any:
    return pb.TokenSequences(dtype=dtype, data=np.array(values, stored).tobytes(), lengths=lengths)


def _features(values: list[float], lengths: list[int], **changes: Any) -> pb.FeatureSequences:
    message = {"dtype": pb.DATA_TYPE_FLOAT32, "width": 2, "data": np.array(values, "<f4").tobytes(), **changes}
    return pb.FeatureSequences(lengths=lengths, **message)


def _read(message: pb.TokenSequences | pb.FeatureSequences, manifest: Manifest | None = None) -> list[list[Any]]:
    if isinstance(message, pb.TokenSequences):
        return [row.tolist() for row in requests.read_tokens(message, manifest or TOKENS, LIMITS, Failures())]
    return [row.tolist() for row in requests.read_features(message, manifest or FEATURES, LIMITS, Failures())]


@pytest.mark.parametrize(("dtype", "stored"), [(pb.DATA_TYPE_INT32, "<i4"), (pb.DATA_TYPE_INT64, "<i8")])
def test_token_ids_are_read_from_either_integer_type(dtype: pb.DataType, stored: str) -> None:
    assert _read(_tokens([0, 9, 5, 5], [2, 1, 1], dtype, stored)) == [[0, 9], [5], [5]]


@pytest.mark.parametrize(("dtype", "stored"), [(pb.DATA_TYPE_FLOAT32, "<f4"), (pb.DATA_TYPE_FLOAT16, "<f2")])
def test_features_are_read_from_either_float_type(dtype: pb.DataType, stored: str) -> None:
    data = np.array([0.5, -1, 2, 3], stored).tobytes()
    assert _read(_features([], [1, 1], dtype=dtype, data=data)) == [[[0.5, -1.0]], [[2.0, 3.0]]]


def test_sequences_are_views_of_one_buffer_and_not_copies() -> None:
    first, second = requests.read_tokens(_tokens([1, 2, 3], [1, 2]), TOKENS, LIMITS, Failures())
    assert first.base is second.base is not None
    assert not first.flags.writeable


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), min_size=1, max_size=2))
def test_what_was_sent_is_what_is_read(sequences: list[list[int]]) -> None:
    flat = [value for sequence in sequences for value in sequence]
    assert _read(_tokens(flat, [len(sequence) for sequence in sequences])) == sequences


@pytest.mark.parametrize(
    ("message", "manifest", "error", "expected", "phrase"),
    [
        # `expected` is (field, sequence, limit, actual).
        (_tokens([], []), TOKENS, InvalidInput, (None, None, None, None), "no sequences: send at least one"),
        (_tokens([1] * 4, [1] * 4), TOKENS, InvalidInput, (None, None, 3, 4), "4 sequences, and the server takes 3"),
        (_tokens([1], [1, 0]), TOKENS, InvalidInput, ("tokens.lengths", 1, None, None), "sequence 1 is empty"),
        (
            _tokens([1] * 6, [1, 5]),
            TOKENS,
            SequenceTooLong,
            ("tokens.lengths", 1, 4, 5),
            "sequence 1 has 5 tokens, and the model takes at most 4",
        ),
        (
            _tokens([1], [1, 2**32 - 1]),
            TOKENS,
            SequenceTooLong,
            ("tokens.lengths", 1, 4, 2**32 - 1),
            "sequence 1 has 4294967295 tokens",
        ),
        (
            _tokens([1] * 3, [2, 1]),
            Manifest(vocabulary_size=10, min_tokens=2, max_tokens=4),
            InvalidInput,
            ("tokens.lengths", 1, 2, 1),
            "sequence 1 is shorter than the 2 tokens that the model needs, in which no token attends to itself",
        ),
        (_tokens([1] * 9, [3, 3, 3]), TOKENS, InvalidInput, (None, None, 8, 9), "9 tokens, and the server takes 8"),
        (
            _tokens([1] * 3, [2, 2]),
            TOKENS,
            InvalidInput,
            ("tokens.data", None, 16, 12),
            "lengths add up to 4 × 1 values of 4 bytes, 16 bytes in all, but data has 12",
        ),
        (_tokens([1] * 4, [2, 1]), TOKENS, InvalidInput, ("tokens.data", None, 12, 16), "but data has 16"),
        (
            pb.TokenSequences(dtype=pb.DATA_TYPE_INT32, data=b"123", lengths=[1]),
            TOKENS,
            InvalidInput,
            ("tokens.data", None, 4, 3),
            "but data has 3",
        ),
        (
            _tokens([1, 2, 10], [1, 2]),
            TOKENS,
            InvalidInput,
            ("tokens.data", 1, 9, 10),
            "sequence 1 has id 10 at position 1, and ids are 0 to 9",
        ),
        (
            _tokens([1, 10, 2], [1, 2]),
            TOKENS,
            InvalidInput,
            ("tokens.data", 1, 9, 10),
            "sequence 1 has id 10 at position 0",
        ),
        (
            _tokens([-1, 2, 11], [1, 2]),
            TOKENS,
            InvalidInput,
            ("tokens.data", 0, 9, -1),
            "sequence 0 has id -1 at position 0",
        ),
        (
            _tokens([2**40], [1], pb.DATA_TYPE_INT64, "<i8"),
            TOKENS,
            InvalidInput,
            ("tokens.data", 0, 9, 2**40),
            "has id 1099511627776",
        ),
        (
            _tokens([1], [1], pb.DATA_TYPE_FLOAT32),
            TOKENS,
            InvalidInput,
            ("tokens.dtype", None, None, None),
            "ids are INT32 or INT64, not FLOAT32",
        ),
        (_tokens([1], [1], 77), TOKENS, InvalidInput, ("tokens.dtype", None, None, None), "INT32 or INT64, not 77"),
        (
            _tokens([1], [1]),
            FEATURES,
            InvalidInput,
            ("tokens", None, None, None),
            "takes features of width 2, not token ids",
        ),
        (_features([], []), FEATURES, InvalidInput, (None, None, None, None), "no sequences: send at least one"),
        (_features([], [], width=0), FEATURES, InvalidInput, (None, None, None, None), "no sequences"),
        (_features([1, 2], [0, 1]), FEATURES, InvalidInput, ("features.lengths", 0, None, None), "sequence 0 is empty"),
        (_features([1] * 10, [5]), FEATURES, SequenceTooLong, ("features.lengths", 0, 4, 5), "takes at most 4"),
        (_features([1, 2, 3], [2]), FEATURES, InvalidInput, ("features.data", None, 16, 12), "2 × 2 values of 4 bytes"),
        (
            _features([1, 2, 3], [1], width=3),
            FEATURES,
            InvalidInput,
            ("features.width", None, 2, 3),
            "is 3, and the model takes features of width 2",
        ),
        (
            _features([1, 2], [1], dtype=pb.DATA_TYPE_INT32),
            FEATURES,
            InvalidInput,
            ("features.dtype", None, None, None),
            "FLOAT32 or FLOAT16, not INT32",
        ),
        (
            _features([0, 0, 0, 0, float("nan"), 0], [1, 2]),
            FEATURES,
            InvalidInput,
            ("features.data", 1, None, None),
            "sequence 1 has a NaN or an infinity at position 1",
        ),
        (
            _features([0, float("-inf"), 0, 0], [2]),
            FEATURES,
            InvalidInput,
            ("features.data", 0, None, None),
            "sequence 0 has a NaN or an infinity at position 0",
        ),
        (_features([1, 2], [1]), TOKENS, InvalidInput, ("features", None, None, None), "takes token ids or texts"),
    ],
)
def test_bad_input_is_refused_by_field_and_sequence(
    message: pb.TokenSequences | pb.FeatureSequences,
    manifest: Manifest,
    error: type[HeadwaiterError],
    expected: tuple[str | None, int | None, int | None, int | None],
    phrase: str,
) -> None:
    with pytest.raises(error, match=re.escape(phrase)) as refusal:
        _read(message, manifest)
    found = refusal.value
    assert type(found) is error
    assert (found.field, found.sequence, found.limit, found.actual) == expected
    assert "\n" not in str(found)


def test_what_is_wrong_with_each_sequence_is_found_where_failures_are_kept() -> None:
    limits = requests.RequestLimits(sequences=9, tokens=99)
    failures = Failures(keep=True)
    message = _tokens([1, 2, 9, 10, 11, *[1] * 5, 12, 3], [2, 3, 0, 5, 2])
    sequences = requests.read_tokens(message, TOKENS, limits, failures)
    assert sequences[0].tolist() == [1, 2]
    found = {index: (type(error), error.actual) for index, error in failures.by_sequence.items()}
    # Of several wrong ids, the first.
    assert found == {1: (InvalidInput, 10), 2: (InvalidInput, None), 3: (SequenceTooLong, 5), 4: (InvalidInput, 12)}

    failures = Failures(keep=True)
    message = _features([0, 0, float("nan"), 0, 1, 2, 3, float("inf")], [1, 1, 2])
    first, _, _ = requests.read_features(message, FEATURES, limits, failures)
    assert first.tolist() == [[0, 0]]
    assert {index: error.sequence for index, error in failures.by_sequence.items()} == {1: 1, 2: 2}


@pytest.mark.parametrize(
    ("field", "phrase", "request_"),
    [
        ("priority", "INTERACTIVE or BULK", pb.EncodeRequest(priority=9)),  # type: ignore[arg-type]
        ("truncation", "ERROR, LEFT or RIGHT", pb.EncodeRequest(truncation=9)),  # type: ignore[arg-type]
        ("truncation", "that is for texts", pb.EncodeRequest(truncation=pb.TRUNCATION_LEFT, tokens=_tokens([], []))),
        ("timeout_s", "seconds from now", pb.EncodeRequest(timeout_s=float("nan"))),
        (
            "output.offsets",
            "that is for texts",
            pb.EncodeRequest(output=pb.OutputOptions(offsets=True), features=_features([], [])),
        ),
    ],
)
def test_options_that_no_model_has_are_refused_by_name(field: str, phrase: str, request_: pb.EncodeRequest) -> None:
    with pytest.raises(InvalidInput, match=f"^{re.escape(field)}: {phrase}") as refusal:
        requests.check_options(request_)
    assert refusal.value.field == field


def test_options_that_are_for_texts_may_go_with_them() -> None:
    request = pb.EncodeRequest(truncation=pb.TRUNCATION_LEFT, output=pb.OutputOptions(offsets=True))
    request.texts.values.append("bread")
    requests.check_options(request)
    assert requests.truncation_of(request) is Truncation.LEFT


@pytest.mark.parametrize("raw", [b"\xff", b"\x0a\x05abc", b"not a message"])
def test_bytes_that_are_no_message_are_invalid_input(raw: bytes) -> None:
    with pytest.raises(InvalidInput, match=r"not a headwaiter\.v1\.EncodeRequest"):
        requests.parse(raw, pb.EncodeRequest())


def test_a_message_is_read_back() -> None:
    request = pb.EncodeRequest(model="tiny", request_id="7", texts=pb.Texts(values=["a"]))
    assert requests.parse(request.SerializeToString(), pb.EncodeRequest()) == request


@pytest.mark.parametrize("request_id", ["7" * 257, "7\nERROR forged", "\x1b[2J"])
def test_an_id_that_would_break_the_log_or_the_reply_is_refused(request_id: str) -> None:
    with pytest.raises(InvalidInput, match="request_id: at most 256 printable characters") as refusal:
        requests.check_id(request_id)
    assert refusal.value.field == "request_id"


@pytest.mark.parametrize("request_id", ["", "7" * 256, "grüße 7"])
def test_an_id_of_printable_characters_is_taken(request_id: str) -> None:
    requests.check_id(request_id)


def test_the_model_may_be_named_or_not_but_no_other() -> None:
    requests.check_model("", TOKENS)
    requests.check_model("tiny", TOKENS)
    with pytest.raises(ModelNotFound, match="no model 'large' here: this server holds 'tiny'"):
        requests.check_model("large", TOKENS)


def test_an_error_quotes_no_more_of_a_name_than_a_reply_can_carry() -> None:
    with pytest.raises(ModelNotFound, match=r"no model 'x{256}' here"):
        requests.check_model("x" * 10_000, TOKENS)
