"""What a reply shall hold is settled before anything is computed, and what the model cannot give is refused."""

import re
from typing import Any

import pytest

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_server.errors import InvalidInput
from headwaiter_server.rpc.outputs import Output, read_output

POOLED = Manifest(width=8, pooling=pb.POOLING_MEAN, normalized=True)
UNPOOLED = Manifest(width=8, pooling=pb.POOLING_NONE)


def _read(manifest: Manifest, **options: Any) -> Output:
    return read_output(pb.OutputOptions(**options), manifest)


@pytest.mark.parametrize(
    ("manifest", "options", "phrase", "limit"),
    [
        (POOLED, {"pooling": 9}, "output.pooling: MEAN, CLS, MAX, LAST or NONE", None),
        (UNPOOLED, {"pooled": True}, "output.pooled: the model has no pooling; choose one in output.pooling", None),
        (POOLED, {"pooled": True, "pooling": pb.POOLING_NONE}, "output.pooled: it is asked for without pooling", None),
        (POOLED, {"dtype": pb.DATA_TYPE_INT32}, "output.dtype: replies are FLOAT32, FLOAT16 or INT8", None),
        (POOLED, {"dtype": 99}, "output.dtype: replies are FLOAT32, FLOAT16 or INT8", None),
        (POOLED, {"hidden_dtype": pb.DATA_TYPE_INT64}, "output.hidden_dtype: replies are FLOAT32", None),
        (POOLED, {"dimensions": 9}, "output.dimensions is 9, and the model's vectors have 8", 8),
    ],
)
def test_what_the_model_cannot_give_is_refused_by_field(
    manifest: Manifest, options: dict[str, Any], phrase: str, limit: int | None
) -> None:
    with pytest.raises(InvalidInput, match=f"^{re.escape(phrase)}") as refusal:
        _read(manifest, **options)
    assert refusal.value.field == re.match(r"[\w.]+", phrase)[0]  # type: ignore[index]
    assert refusal.value.limit == limit


@pytest.mark.parametrize(
    ("manifest", "options", "pooled", "hidden", "rows"),
    [
        (POOLED, {}, True, False, False),
        (POOLED, {"hidden": True}, False, True, True),
        (POOLED, {"pooled": True, "hidden": True}, True, True, True),
        (POOLED, {"pooling": pb.POOLING_MEAN}, True, False, False),
        (POOLED, {"pooling": pb.POOLING_MAX}, True, False, True),
        (POOLED, {"pooling": pb.POOLING_NONE}, False, True, True),
        (UNPOOLED, {}, False, True, True),
        (UNPOOLED, {"pooling": pb.POOLING_CLS, "pooled": True}, True, False, True),
    ],
)
def test_rows_are_computed_where_they_are_asked_for_or_another_pooling_than_the_graphs_needs_them(
    manifest: Manifest, options: dict[str, Any], pooled: bool, hidden: bool, rows: bool
) -> None:
    output = _read(manifest, **options)
    assert (output.pooled, output.hidden, output.needs_rows(0)) == (pooled, hidden, rows)


def test_what_is_not_asked_for_is_as_the_model_has_it() -> None:
    output = _read(POOLED)
    assert (output.pooling, output.normalized, output.dimensions) == (pb.POOLING_MEAN, True, 8)
    assert (output.pooled_dtype, output.hidden_dtype) == (pb.DATA_TYPE_FLOAT32, pb.DATA_TYPE_FLOAT32)
    assert not _read(POOLED, normalize=False).normalized
    assert _read(POOLED, dimensions=8).dimensions == 8
    assert _read(POOLED, dtype=pb.DATA_TYPE_INT8).hidden_dtype == pb.DATA_TYPE_INT8
