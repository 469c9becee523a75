"""An Attend request for layers, heads or positions that do not exist, or for too many weights, is refused."""

from collections.abc import Sequence
from typing import Any

import pytest

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules.attend import select
from headwaiter_proto.rules.errors import InvalidInput

MODEL = Manifest(name="tiny", layers=3, heads=4)
# The weights of 5 tokens take 4 heads · 25 · 4 bytes = 400 bytes per layer.
TOKENS, LAYER_BYTES = 5, 400
PLENTY = 1 << 20


def _select(limit_bytes: int = PLENTY, **fields: Any) -> tuple[Sequence[int], Sequence[int], int | None, bool]:
    return select(pb.AttendRequest(**fields), TOKENS, MODEL, limit_bytes)


def test_all_layers_and_heads_are_selected_by_default() -> None:
    layers, heads, query, vectors = _select()
    assert (list(layers), list(heads), query, vectors) == ([0, 1, 2], [0, 1, 2, 3], None, False)
    assert _select(layers=[2, 0], heads=[3], query=0) == ([2, 0], [3], 0, False)
    assert _select(layers=[2], heads=[3], query=0, vectors=True) == ([2], [3], 0, True)
    assert _select(query=4)[2] == 4


@pytest.mark.parametrize(
    ("fields", "field", "limit", "actual"),
    [
        ({"layers": [1, 0, 1]}, "layers", None, None),
        ({"heads": [2, 2]}, "heads", None, None),
        ({"layers": [9] * 4}, "layers", 3, 4),
    ],
)
def test_an_index_that_does_not_exist_or_is_repeated_is_refused(
    fields: dict[str, Any], field: str, limit: int | None, actual: int | None
) -> None:
    with pytest.raises(InvalidInput) as refusal:
        _select(**fields)
    error = refusal.value
    assert (error.field, error.limit, error.actual) == (field, limit, actual)
    assert field in str(error)
    for value in (limit, actual):
        assert value is None or str(value) in str(error)


@pytest.mark.parametrize(
    "fields", [{"heads": [0], "query": 0}, {"layers": [0], "query": 0}, {"layers": [0], "heads": [0]}]
)
def test_vectors_are_those_of_one_query_in_one_head(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as refusal:
        _select(**fields, vectors=True)
    assert refusal.value.field == "vectors"


def test_weights_up_to_the_limit_are_computed_and_an_error_names_what_would_fit() -> None:
    assert len(_select(2 * LAYER_BYTES, layers=[0, 1])[0]) == 2
    with pytest.raises(InvalidInput) as refusal:
        _select(2 * LAYER_BYTES - 1, layers=[0, 1])
    error = refusal.value
    assert (error.field, error.limit, error.actual) == ("layers", 799, 800)
    assert all(fact in str(error) for fact in ("799", "800", "at most 1 of"))
    with pytest.raises(InvalidInput, match="1200"):  # The server computes the heads that are not requested, too.
        _select(1199, heads=[0])
    with pytest.raises(InvalidInput, match="4 tokens"):  # The longest sequence if one layer is already too large.
        _select(LAYER_BYTES - 1, layers=[0])
    assert select(pb.AttendRequest(layers=[0]), 4, MODEL, LAYER_BYTES - 1)[0] == [0]
