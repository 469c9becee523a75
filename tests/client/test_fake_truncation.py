"""The fake encoder counts and truncates tokens as a server does."""

from typing import Any

import pytest

from headwaiter_client import Client, SequenceTooLong
from headwaiter_client.testing import FakeEncoder


def test_a_text_of_two_words_and_40000_spaces_is_not_too_long() -> None:
    client = Client(transport=FakeEncoder(max_tokens=4))
    encoding = client.encode(["hello" + " " * 40_000 + "world"], partial=True)
    assert (encoding.failures, encoding.lengths.tolist()) == ({}, [4])


@pytest.mark.parametrize("truncation", ["left", "right"])
@pytest.mark.parametrize("limits", [{"max_tokens": 1}, {"max_text_tokens": 1}])
def test_special_tokens_are_never_cut_so_a_lower_limit_refuses_every_text(
    truncation: Any, limits: dict[str, int]
) -> None:
    client = Client(transport=FakeEncoder(**limits))  # type: ignore[arg-type]
    with pytest.raises(SequenceTooLong) as caught:
        client.encode(["a b c"], truncation=truncation)
    assert (caught.value.sequence, caught.value.field) == (0, "texts")
    assert (caught.value.limit, caught.value.actual) == (1, 5)
    partial = client.encode(["a b c"], truncation=truncation, partial=True)
    assert (partial.lengths.tolist(), partial.truncated, list(partial.failures)) == ([0], {}, [0])


@pytest.mark.parametrize("truncation", ["left", "right"])
def test_a_limit_of_the_special_tokens_leaves_no_word(truncation: Any) -> None:
    encoding = Client(transport=FakeEncoder(max_tokens=2)).encode(["a b c"], truncation=truncation, offsets=True)
    assert (encoding.lengths.tolist(), encoding.truncated) == ([2], {0: 5})
    assert encoding.offsets[0].tolist() == [[0, 0], [0, 0]]
