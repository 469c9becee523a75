"""Values of JSON are counted without parsing, and texts count as one value whatever they hold."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwaiter_proto.rules.errors import InvalidInput
from headwaiter_server.http.json_size import check_value_count, count_values

TEXTS = st.text(alphabet='\\",[{}]: a', max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=30,
)


def separators(value: Any) -> int:
    """Return the number of brackets that open, and of commas between the members of a list or an object."""
    if not isinstance(value, list | dict):
        return 0
    members = list(value.values()) if isinstance(value, dict) else value
    return 1 + max(0, len(members) - 1) + sum(map(separators, members))


@given(VALUES)
def test_only_what_separates_values_is_counted(value: Any) -> None:
    assert count_values(json.dumps(value).encode()) == separators(value)


@pytest.mark.parametrize(
    "body", [b'{"input": [%s[]]}' % (b"[]," * 50_000), b"[%s1]" % (b"1," * 50_000), b"[" * 100_000, b"," * 100_000]
)
def test_a_body_of_many_values_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_value_count(body, 50_000)
    assert refused.value.limit == 50_000


@pytest.mark.parametrize("text", ['[{,"' * 30_000, "\\" * 50_000, "," * 100_000])
def test_a_long_text_is_one_value(text: str) -> None:
    check_value_count(json.dumps({"input": [text, 1]}).encode(), 3)
