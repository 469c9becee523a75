"""The outputs of a reply are decided before the model runs, and impossible outputs are refused."""

from typing import Any

import pytest

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules.errors import InvalidInput
from headwaiter_proto.rules.outputs import WantedOutput, hidden_width, poolings, read_output
from headwaiter_proto.rules.tasks import tasks

POOLED = Manifest(width=8, pooling=pb.POOLING_MEAN, normalized=True)
PROJECTED = Manifest(width=4, hidden_width=8, pooling=pb.POOLING_MEAN, fixed_pooling=True)
UNPOOLED = Manifest(width=8, pooling=pb.POOLING_NONE)
WEIGHING = Manifest(
    width=8,
    pooling=pb.POOLING_CLS,
    fixed_pooling=True,
    head=pb.Head(labels=["weight"], function=pb.SCORE_FUNCTION_RELU, per_token=True),
    unweighted_ids=[0, 2],
)


VECTORS = Manifest(width=8, pooling=pb.POOLING_OWN, fixed_pooling=True, without_rows=True)
SCORES = Manifest(name="m", pooling=pb.POOLING_NONE, without_rows=True, head=pb.Head(labels=["a"]))


def _read(manifest: Manifest, **options: Any) -> WantedOutput:
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
        (POOLED, {"sparse": True}, "model", None, None, "sparse"),
        (WEIGHING, {"sparse": True, "dtype": pb.DATA_TYPE_INT8}, "output.dtype", None, None, "INT8"),
        (WEIGHING, {"sparse": True, "pooling": pb.POOLING_MEAN}, "output.pooling", None, None, "MEAN"),
        (VECTORS, {"pooling": pb.POOLING_MEAN}, "output.pooling", None, None, "OWN"),
        (SCORES, {"pooling": pb.POOLING_MEAN}, "output.pooling", None, None, "MEAN"),
        (SCORES, {"pooled": True}, "output.pooled", None, None, "no pooling"),
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


@pytest.mark.parametrize("manifest", [VECTORS, SCORES])
def test_a_model_without_rows_gives_only_what_it_has(manifest: Manifest) -> None:
    for options in ({"hidden": True}, {"pooling": pb.POOLING_NONE}):
        with pytest.raises(InvalidInput, match="a row for each token") as refusal:
            _read(manifest, **options)
        assert refusal.value.field == "model"
    if manifest is VECTORS:
        assert _read(manifest).pooled
        assert not _read(manifest).needs_rows(0)
        assert (tasks(manifest), hidden_width(manifest)) == ([pb.TASK_ENCODE], 0)
    else:
        assert _read(manifest, scores=True).head is not None
        assert tasks(manifest) == [pb.TASK_CLASSIFY]
        assert [*poolings(manifest)] == []
        with pytest.raises(InvalidInput, match="'m' classifies"):
            _read(manifest)


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


@pytest.mark.parametrize(
    ("options", "outputs"),
    [
        ({}, (True, False, False)),
        ({"sparse": True}, (False, False, True)),
        ({"sparse": True, "pooled": True}, (True, False, True)),
        ({"sparse": True, "pooled": True, "hidden": True}, (True, True, True)),
    ],
)
def test_weights_of_tokens_come_alone_or_beside_other_outputs(
    options: dict[str, Any], outputs: tuple[bool, bool, bool]
) -> None:
    output = _read(WEIGHING, **options)
    assert (output.pooled, output.hidden, output.unweighted_ids is not None) == outputs
    assert not output.sparse


SPARSE = Manifest(width=8, vocabulary_size=8, pooling=pb.POOLING_MAX, fixed_pooling=True, sparse=True)


def test_for_a_model_of_sparse_vectors_the_flag_means_pooled() -> None:
    assert _read(SPARSE, sparse=True) == _read(SPARSE) == _read(SPARSE, pooled=True)
    assert _read(SPARSE, sparse=True, hidden=True) == _read(SPARSE, pooled=True, hidden=True)


@pytest.mark.parametrize(
    ("options", "field"), [({"dense": True}, "output.sparse"), ({"pooling": pb.POOLING_NONE}, "output.pooled")]
)
def test_sparse_vectors_that_an_option_leaves_out_are_refused(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        _read(SPARSE, sparse=True, **options)
    assert refusal.value.field == field
