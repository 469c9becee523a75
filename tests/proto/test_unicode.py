"""The error of a text that is not Unicode names the text, the half of an emoji, and the place."""

import json
from typing import Any

import pytest

from headwaiter_proto.rules.errors import InvalidInput
from headwaiter_proto.rules.unicode import check_json_texts, not_unicode

HALF, OTHER_HALF = "\ud83c", "\udf55"


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"caf\xc3\xa9 \xed\xa0\xbc", ("U+D83C", "character 5")),
        (b"\xed\xbd\x95 pizza", ("U+DF55", "character 0")),
        ("name\udce9".encode("utf-8", "surrogatepass"), ("U+DCE9", "character 4", "a byte that was not UTF-8")),
        (b"caf\xe9", ("byte 3",)),
        (b"\xc3", ("byte 0",)),
        (b"a\xed\xa0", ("byte 1",)),
    ],
)
def test_bytes_that_are_not_utf8_name_the_fault(raw: bytes, words: tuple[str, ...]) -> None:
    with pytest.raises(UnicodeDecodeError) as fault:
        raw.decode()
    error = not_unicode(fault.value, "", "texts.values", 3)
    assert (error.sequence, error.field) == (3, "texts.values")
    assert [word for word in ("sequence 3", *words) if word not in str(error)] == []


def test_a_str_with_half_an_emoji_has_the_error_of_its_bytes() -> None:
    text = f"café {HALF}"
    errors = []
    for fails in (text.encode, text.encode("utf-8", "surrogatepass").decode):
        with pytest.raises(UnicodeError) as fault:
            fails()
        errors.append(str(not_unicode(fault.value, "a text", None)))  # type: ignore[arg-type]
    assert errors[0] == errors[1]


@pytest.mark.parametrize(
    ("body", "field", "index"),
    [
        ({"input": ["a", f"b{HALF}"]}, "input", 1),
        ({"input": f"b{OTHER_HALF}"}, "input", None),
        ({"inputs": [["a", "b"], ["c", HALF]]}, "inputs", 1),
        ({"documents": ["a", {"text": HALF}]}, "documents", 1),
        ({"inputs": {"source_sentence": "a", "sentences": ["b", "c", HALF]}}, "sentences", 2),
        ({"inputs": [{"name": "text", "data": [["a"], [HALF]]}]}, "data", 1),
        ({"inputs": [{"name": HALF}]}, "inputs", 0),
        ({"texts": {"values": ["a"], "prompt": HALF}}, "prompt", None),
        ({"input": [HALF, "b", HALF]}, "input", 0),
        ({"n" * 1000: HALF}, "n" * 256, None),
        ({HALF: ["a"]}, None, None),
        (HALF, None, None),
    ],
)
@pytest.mark.parametrize("escaped", [True, False])
def test_half_an_emoji_in_json_has_the_name_of_its_field(
    body: Any, field: str | None, index: int | None, escaped: bool
) -> None:
    raw = json.dumps(body, ensure_ascii=escaped).encode("utf-8", "surrogatepass")
    with pytest.raises(InvalidInput, match=r"U\+D") as refused:
        check_json_texts(raw)
    assert (refused.value.field, refused.value.sequence) == (field, index)
    str(refused.value).encode()


@pytest.mark.parametrize(
    "raw",
    [
        rb'{"input": "\ud83c\udf55"}',
        rb'{"input": "\\ud83c"}',
        rb'{"input": "\ud83c',
        b'{"input": "\\ud83c \xff"}',
        b"[" * 100_000 + b'"\\ud83c',
        b"",
    ],
)
def test_other_json_is_not_judged(raw: bytes) -> None:
    check_json_texts(raw)
