"""Our operators and functions give the values that ONNX Runtime publishes for its own operators.

The operators of tests/support/contrib_ops.py run in onnx's reference evaluator, and the functions of
tests/support/export/standard_attention.py in ONNX Runtime.

The folder `onnxruntime_values` holds inputs and outputs from ONNX Runtime's tests (MIT licence). Each file names the
source files, lines and the commit; the values of BiasGelu, RotaryEmbedding and
SkipSimplifiedLayerNormalization were computed by ONNX Runtime 1.31.1 on a CPU.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference.op_run import OpRun

from headwaiter_server.runtime.packing import PackedBatch, cu_seqlens, token_offset
from tests.support.contrib_ops import (
    CONTRIB_OPS,
    BiasGelu,
    FastGelu,
    PackedMultiHeadAttention,
    RotaryEmbedding,
    SkipLayerNormalization,
    SkipSimplifiedLayerNormalization,
)
from tests.support.documents import ROOT
from tests.support.export.standard_attention import open_with_standard_attention
from tests.support.oracle import Array

VALUES = ROOT / "tests" / "support" / "export" / "onnxruntime_values"
DTYPES = {"float": np.float32, "float16": np.float16, "double": np.float64, "int32": np.int32, "int64": np.int64}


def read_cases(name: str) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the names of an operator's inputs, and its cases."""
    file = json.loads((VALUES / f"{name}.json").read_text())
    return file.get("input_order", []), file["cases"]


def read_array(stored: dict[str, Any], dtype: str = "") -> Array:
    """Return a stored array; floating-point values in `dtype` if given."""
    kind = DTYPES[dtype if dtype and stored["type"] == "float" else stored["type"]]
    return np.array(stored["data"], kind).reshape(stored["shape"])


def dtypes(case: dict[str, Any]) -> list[str]:
    """Return the types of a case that numpy has."""
    return sorted(DTYPES.keys() & (case["run_as"] or ["float"]))


def runs() -> Iterator[Any]:
    """Yield each case of each operator in each type that numpy has."""
    for operator in CONTRIB_OPS:
        input_names, cases = read_cases(operator.__name__)
        for case in cases:
            for dtype in dtypes(case):
                yield pytest.param(operator, input_names, case, dtype, id=f"{operator.__name__}-{case['name']}-{dtype}")


def largest_error(operator: Any, input_names: list[str], case: dict[str, Any], dtype: str) -> float:
    """Run a case, and return the largest difference from the published values, in multiples of the tolerance."""
    stored = [case["inputs"].get(name) for name in input_names]
    inputs: list[Any] = [None if each is None else read_array(each, dtype) for each in stored]
    while inputs[-1] is None:
        inputs.pop()
    return error_of(operator.eval(*inputs, n_outputs=1, **case["attributes"]), case, dtype)


def error_of(actual: Array, case: dict[str, Any], dtype: str) -> float:
    """Return the largest difference from the published values, in multiples of the tolerance."""
    (output, *_) = case["outputs"].values()
    expected = np.array(output["data"]).reshape(output["shape"])
    tolerance = case["tolerance"][dtype]
    assert actual.dtype == DTYPES[dtype]
    allowed = tolerance["absolute"] + tolerance.get("relative", 0.0) * np.abs(expected)
    return float((np.abs(actual - expected) / allowed).max())


@pytest.mark.parametrize(("operator", "input_names", "case", "dtype"), list(runs()))
def test_the_operators_give_the_published_values(
    operator: Any, input_names: list[str], case: dict[str, Any], dtype: str
) -> None:
    assert largest_error(operator, input_names, case, dtype) <= 1


def attention_runs() -> Iterator[Any]:
    """Yield the cases whose biases are not beside three inputs; graphs of the export have no such node."""
    for case in read_cases("PackedMultiHeadAttention")[1]:
        for dtype in dtypes(case) if "bias" not in case["inputs"] else ():
            yield pytest.param(case, dtype, id=f"{case['name']}-{dtype}")


@pytest.mark.usefixtures("runs_graphs")
@pytest.mark.parametrize(("case", "dtype"), list(attention_runs()))
def test_the_standard_functions_give_the_published_values(case: dict[str, Any], dtype: str, tmp_path: Path) -> None:
    inputs = {name: read_array(stored, dtype) for name, stored in case["inputs"].items()}
    order = read_cases("PackedMultiHeadAttention")[0]
    names = [name if name in inputs else "" for name in (order if "attention_bias" in inputs else order[:-1])]
    attributes = {"mask_filter_value": -10_000.0, **case["attributes"]}
    node = helper.make_node("PackedMultiHeadAttention", names, ["output"], domain="com.microsoft", **attributes)
    types = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in inputs.items()}
    declared = [helper.make_tensor_value_info(name, types[name], array.shape) for name, array in inputs.items()]
    output = helper.make_tensor_value_info("output", types["query"], [None, None])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "attention", declared, [output])
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), tmp_path / "graph.onnx")
    (actual,) = open_with_standard_attention(tmp_path / "graph.onnx").run(None, inputs)
    assert error_of(actual, case, dtype) <= 1


@pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in read_cases("PackedAttention")[1]])
def test_packed_attention_is_a_product_and_packed_multi_head_attention(case: dict[str, Any]) -> None:
    inputs = {name: read_array(stored) for name, stored in case["inputs"].items()}
    rows, weights, bias = (inputs[name] for name in ("input", "weights", "bias"))
    widths = case["attributes"].get("qkv_hidden_sizes", [weights.shape[1] // 3] * 3)
    query, key, value = np.split(rows @ weights, np.cumsum(widths)[:-1], axis=1)
    operator: Any = PackedMultiHeadAttention
    actual = operator.eval(
        query,
        key,
        value,
        bias,
        inputs["token_offset"],
        inputs["cumulative_sequence_length"],
        *([inputs["attention_bias"]] if "attention_bias" in inputs else []),
        n_outputs=1,
        num_heads=case["attributes"]["num_heads"],
    )
    expected = read_array(case["outputs"]["output"])
    np.testing.assert_allclose(actual, expected, rtol=0, atol=case["tolerance"]["float"]["absolute"])


# Takes the operator's own function, the operator, and the arguments of the call.
Change = Callable[[Callable[..., Any], OpRun, tuple[Any, ...], dict[str, Any]], Any]


def changed(operator: type[OpRun], change: Change) -> Any:
    """Return an operator that computes something else."""
    run = operator._run
    return type(operator.__name__, (operator,), {"_run": lambda self, *args, **kw: change(run, self, args, kw)})


def mirrored(token_offset: Array) -> Array:
    """Return the offsets of rows that are aligned at the end of their line instead of its start."""
    first_cells = token_offset - token_offset % token_offset.shape[1]
    cells: Array = 2 * first_cells + token_offset.shape[1] - 1 - token_offset
    return cells


def neighbours(x: Array, table: Array) -> Array:
    """Put the values of the two halves of each head beside each other."""
    return x.reshape(*x.shape[:2], -1, 2, table.shape[1]).swapaxes(3, 4).reshape(x.shape)


def halves(x: Array, table: Array) -> tuple[Array]:
    """Undo `neighbours`."""
    return (x.reshape(*x.shape[:2], -1, table.shape[1], 2).swapaxes(3, 4).reshape(x.shape),)


# Wrong readings of the operators. Each must miss the published values of at least one case.
WRONG_READINGS: dict[str, tuple[Any, Change]] = {
    "scale": (PackedMultiHeadAttention, lambda run, op, args, kw: run(op, *args, **{**kw, "scale": 1.0})),
    "bias left out": (PackedMultiHeadAttention, lambda run, op, args, kw: run(op, *args[:3], None, *args[4:], **kw)),
    "attention bias left out": (PackedMultiHeadAttention, lambda run, op, args, kw: run(op, *args[:6], **kw)),
    "attention bias transposed": (
        PackedMultiHeadAttention,
        lambda run, op, args, kw: run(op, *args[:6], *(each.transpose(0, 1, 3, 2) for each in args[6:]), **kw),
    ),
    "cells in reverse order": (
        PackedMultiHeadAttention,
        lambda run, op, args, kw: run(op, *args[:4], args[4].ravel()[::-1].reshape(args[4].shape), *args[5:], **kw),
    ),
    "masked keys at the start of a line": (
        PackedMultiHeadAttention,
        lambda run, op, args, kw: run(op, *args[:4], mirrored(args[4]), *args[5:], **kw),
    ),
    "padding cells seen as keys": (
        PackedMultiHeadAttention,
        lambda run, op, args, kw: run(
            op, *args[:5], np.arange(len(args[5]), dtype=np.int32) * args[4].shape[1], *args[6:], **kw
        ),
    ),
    "order of the rows instead of their positions": (
        RotaryEmbedding,
        lambda run, op, args, kw: run(op, args[0], np.indices(args[1].shape)[1] % len(args[2]), *args[2:], **kw),
    ),
    "angles in the other direction": (
        RotaryEmbedding,
        lambda run, op, args, kw: run(op, *args[:3], -args[3], **kw),
    ),
    "pairs of the two halves of a head": (
        RotaryEmbedding,
        lambda run, op, args, kw: halves(run(op, neighbours(args[0], args[2]), *args[1:], **kw)[0], args[2]),
    ),
    "residual left out": (
        SkipLayerNormalization,
        lambda run, op, args, kw: run(op, args[0], np.zeros_like(args[1]), *args[2:], **kw),
    ),
    "bias of the sum left out": (SkipLayerNormalization, lambda run, op, args, kw: run(op, *args[:4], **kw)),
    "shift left out": (
        SkipLayerNormalization,
        lambda run, op, args, kw: run(op, *args[:3], None, *args[4:], **kw),
    ),
    "large epsilon": (SkipLayerNormalization, lambda run, op, args, kw: run(op, *args, **{**kw, "epsilon": 1e-3})),
    "mean subtracted": (
        SkipSimplifiedLayerNormalization,
        lambda run, op, args, kw: run(op, *(each - each.mean(-1, keepdims=True) for each in args[:2]), *args[2:], **kw),
    ),
    "small epsilon": (
        SkipSimplifiedLayerNormalization,
        lambda run, op, args, kw: run(op, *args, **{**kw, "epsilon": 0}),
    ),
    "bias of Gelu left out": (BiasGelu, lambda run, op, args, kw: run(op, args[0], np.zeros_like(args[1]))),
    "bias of the tanh approximation left out": (FastGelu, lambda run, op, args, kw: run(op, args[0])),
}


def test_every_operator_has_a_wrong_reading() -> None:
    assert {operator for operator, _ in WRONG_READINGS.values()} == set(CONTRIB_OPS)


@pytest.mark.parametrize("reading", WRONG_READINGS)
def test_a_wrong_reading_of_an_operator_misses_a_published_value(reading: str) -> None:
    operator, change = WRONG_READINGS[reading]
    input_names, cases = read_cases(operator.__name__)
    wrong = changed(operator, change)
    errors = [largest_error(wrong, input_names, case, dtype) for case in cases for dtype in dtypes(case)]
    assert max(errors) > 1


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case["name"]) for case in read_cases("index_tensors")[1] if "token_offset" in case],
)
def test_the_index_arrays_of_a_batch_are_those_that_onnx_runtime_documents(case: dict[str, Any]) -> None:
    lengths = np.array(case["lengths"], np.int32)
    starts = np.cumsum(lengths, dtype=np.int64) - lengths
    batch = PackedBatch(np.zeros(lengths.sum(), np.int64), lengths, starts, case["line_cells"])
    assert token_offset(batch).ravel().tolist() == case["token_offset"]
    assert cu_seqlens(batch).tolist() == case["cumulative_sequence_length"]
