"""`patches`, and a fake Vision Transformer that accepts images of one size alone."""

from typing import Any

import numpy as np
import pytest

from headwaiter_client import Client, FakeEncoder, InvalidInput, SequenceTooLong, patches


def test_each_row_holds_one_patch_with_channels_first_after_a_row_of_zeros() -> None:
    image = np.arange(2 * 4 * 6).reshape(2, 4, 6)
    rows = patches(image, 2)
    assert rows.shape == (7, 8)
    assert rows.dtype == np.float32
    assert not rows[0].any()
    assert rows[1].tolist() == [0, 1, 6, 7, 24, 25, 30, 31]
    assert rows[2].tolist() == [2, 3, 8, 9, 26, 27, 32, 33]
    assert rows[4].tolist() == [12, 13, 18, 19, 36, 37, 42, 43]


@pytest.mark.parametrize(
    ("dtype", "expected"), [(np.uint8, np.float32), (np.float64, np.float32), (np.float16, np.float16)]
)
def test_rows_are_floats_that_the_client_sends(dtype: Any, expected: Any) -> None:
    assert patches(np.ones((3, 4, 4), dtype), 2).dtype == expected
    assert patches([[[1.0, 2.0]]], np.int64(1)).tolist() == [[0], [1], [2]]


@pytest.mark.parametrize(
    ("image", "patch_size", "strides", "facts"),
    [
        (np.ones((224, 224, 3)), 16, None, ["[224, 224, 3]", "16"]),
        (np.ones((3, 30, 32)), 16, None, ["[3, 30, 32]"]),
        (np.ones((4, 4)), 2, None, ["[4, 4]"]),
        (np.ones((1, 3, 4, 4)), 2, None, ["[1, 3, 4, 4]"]),
        (np.ones((3, 0, 4)), 2, None, ["[3, 0, 4]"]),
        (np.full((1, 2, 2), "a"), 2, None, ["<U1"]),
        (np.ones((3, 4, 4)), 0, None, ["patch_size", "0"]),
        (np.ones((1, 1, 4)), 2, (0, 1), ["strides", "0"]),
        (np.ones((1, 1, 4)), 2, (1, -1), ["strides", "-1"]),
        (np.ones((1, 1, 4)), 2, (1, 1), ["[1, 1, 4]", "2"]),
    ],
)
def test_an_image_that_has_no_such_patches_is_refused(
    image: Any, patch_size: int, strides: tuple[int, int] | None, facts: list[str]
) -> None:
    with pytest.raises(InvalidInput) as caught:
        patches(image, patch_size, strides=strides)
    assert all(fact in str(caught.value) for fact in facts)


def test_the_size_of_patches_is_a_whole_number() -> None:
    with pytest.raises(TypeError):
        patches(np.ones((3, 4, 4)), 2.0)  # type: ignore[arg-type]


def test_the_rows_of_zeros_are_as_many_as_the_model_has_tokens_of_its_own() -> None:
    image = np.ones((3, 4, 4))
    rows = patches(image, 2, prefix_rows=3)
    assert rows.any(axis=1).tolist() == [False] * 3 + [True] * 4
    assert patches(image, 2, prefix_rows=0).all()
    with pytest.raises(InvalidInput) as caught:
        patches(image, 2, prefix_rows=-1)
    assert "-1" in str(caught.value)
    client = Client(transport=FakeEncoder(feature_width=12, max_tokens=7, fixed_length=True, prefix_rows=3))
    assert client.model().prefix_rows == 3
    assert client.encode_features([rows]).lengths.tolist() == [7]
    rows[2, 5] = 1
    with pytest.raises(InvalidInput) as caught:
        client.encode_features([rows])
    assert caught.value.field == "features.data"
    assert "position 2" in str(caught.value)
    with pytest.raises(InvalidInput) as caught:
        client.encode_features([rows[1:]])
    assert "3 rows of zeros and the 4 patches" in str(caught.value)


def test_a_fake_of_a_vision_transformer_refuses_what_its_server_refuses() -> None:
    client = Client(transport=FakeEncoder(feature_width=12, max_tokens=10, fixed_length=True, prefix_rows=1))
    model = client.model()
    assert (model.min_tokens, model.max_tokens) == (10, 10)
    good, smaller, larger = (patches(np.ones((3, side, side)), 2) for side in (6, 4, 8))
    for rows, kind in ((smaller, InvalidInput), (good[1:], InvalidInput), (larger, SequenceTooLong)):
        with pytest.raises(InvalidInput) as caught:
            client.encode_features([good, rows])
        assert type(caught.value) is kind
        facts = (caught.value.sequence, caught.value.field, caught.value.limit, caught.value.actual)
        assert facts == (1, "features.lengths", 10, len(rows))
        with pytest.raises(kind):
            client.attend(rows)
    no_zeros = good + 1
    result = client.encode_features([good, no_zeros, smaller, good], partial=True)
    assert {index: error.field for index, error in result.failures.items()} == {
        1: "features.data",
        2: "features.lengths",
    }
    assert result.lengths.tolist() == [10, 0, 0, 10]


def test_a_model_of_one_length_without_rows_of_zeros_takes_any_first_row() -> None:
    client = Client(transport=FakeEncoder(feature_width=12, max_tokens=9, fixed_length=True))
    rows = patches(np.ones((3, 6, 6)), 2)[1:]
    assert client.encode_features([rows]).lengths.tolist() == [9]
    with pytest.raises(InvalidInput) as caught:
        client.encode_features([rows[1:]])
    assert (caught.value.limit, caught.value.actual) == (9, 8)


def test_patches_overlap_if_the_strides_are_smaller_than_the_patches() -> None:
    spectrogram = np.arange(5 * 4).reshape(5, 4)  # 5 frames of 4 bins
    rows = patches(spectrogram.T[None], 2, prefix_rows=2, strides=(2, 1))
    assert rows.shape == (2 + 2 * 4, 4)
    assert rows[2].tolist() == [0, 4, 1, 5]
    assert rows[3].tolist() == [4, 8, 5, 9]
    assert rows[6].tolist() == [2, 6, 3, 7]


def test_pixels_behind_the_last_complete_patch_are_left_out_only_with_strides() -> None:
    image = np.ones((3, 5, 7))
    assert patches(image, 2, strides=(2, 2)).shape == (1 + 2 * 3, 12)
    with pytest.raises(InvalidInput):
        patches(image, 2)
