"""The outputs of a reply are decided before the model runs, and impossible outputs are refused."""

from typing import Any

import pytest

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules.errors import InvalidInput
from headwaiter_proto.rules.outputs import Output, read_output

POOLED = Manifest(width=8, pooling=pb.POOLING_MEAN, normalized=True)
PROJECTED = Manifest(width=4, hidden_width=8, pooling=pb.POOLING_MEAN, fixed_pooling=True)
UNPOOLED = Manifest(width=8, pooling=pb.POOLING_NONE)


def _read(manifest: Manifest, **options: Any) -> Output:
    return read_output(pb.OutputOptions(**options), manifest)


@pytest.mark.parametrize(
    ("manifest", "options", "field", "limit", "actual", "value"),
    [
        (UNPOOLED, {"pooled": True}, "output.pooled", None, None, "no pooling"),
        (POOLED, {"pooled": True, "pooling": pb.POOLING_NONE}, "output.pooled", None, None, "NONE"),
        (POOLED, {"dtype": 99}, "output.dtype", None, None, "99"),
        (POOLED, {"hidden_dtype": pb.DATA_TYPE_INT64}, "output.hidden_dtype", None, None, "INT64"),
        (PROJECTED, {"dimensions": 5}, "output.dimensions", 4, 5, "5"),
        (PROJECTED, {"pooling": pb.POOLING_CLS}, "output.pooling", None, None, "CLS"),
    ],
)
def test_an_output_that_the_model_cannot_give_is_refused(
    manifest: Manifest, options: dict[str, Any], field: str, limit: int | None, actual: int | None, value: str
) -> None:
    with pytest.raises(InvalidInput) as refusal:
        _read(manifest, **options)
    error = refusal.value
    assert (error.field, error.limit, error.actual) == (field, limit, actual)
    assert field in str(error)
    assert value in str(error)


@pytest.mark.parametrize(
    ("manifest", "options", "pooled", "hidden", "rows"),
    [
        (POOLED, {}, True, False, False),
        (POOLED, {"hidden": True}, False, True, True),
        (POOLED, {"pooled": True, "hidden": True}, True, True, True),
        (POOLED, {"pooling": pb.POOLING_MEAN}, True, False, False),
        (POOLED, {"pooling": pb.POOLING_MAX}, True, False, True),
        (POOLED, {"pooling": pb.POOLING_NONE}, False, True, True),
        (PROJECTED, {"pooling": pb.POOLING_MEAN}, True, False, False),
        (PROJECTED, {"pooling": pb.POOLING_NONE}, False, True, True),
        (UNPOOLED, {}, False, True, True),
        (UNPOOLED, {"pooling": pb.POOLING_CLS, "pooled": True}, True, False, True),
    ],
)
def test_rows_are_needed_for_hidden_output_and_for_a_pooling_that_the_graph_does_not_compute(
    manifest: Manifest, options: dict[str, Any], pooled: bool, hidden: bool, rows: bool
) -> None:
    output = _read(manifest, **options)
    assert (output.pooled, output.hidden, output.needs_rows(0)) == (pooled, hidden, rows)


def test_options_that_are_not_set_have_the_models_default() -> None:
    output = _read(POOLED)
    assert (output.pooling, output.normalized, output.dimensions) == (pb.POOLING_MEAN, True, 8)
    assert (output.pooled_dtype, output.hidden_dtype) == (pb.DATA_TYPE_FLOAT32, pb.DATA_TYPE_FLOAT32)
    assert not _read(POOLED, normalize=False).normalized
    assert _read(POOLED, dimensions=8).dimensions == 8
    assert _read(POOLED, dtype=pb.DATA_TYPE_INT8).hidden_dtype == pb.DATA_TYPE_INT8
