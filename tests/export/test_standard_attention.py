"""The functions that run CUDA's attention operator on a CPU give the values that ONNX Runtime publishes for it.

The folder `onnxruntime_values` holds inputs and outputs from ONNX Runtime's tests (MIT licence). Each file names the
source files, lines and the commit.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from headwaiter_server.runtime.packing import PackedBatch, cu_seqlens, token_offset
from tests.support.documents import ROOT
from tests.support.export.standard_attention import ATTENTION, open_with_standard_attention
from tests.support.oracle import Array

pytestmark = pytest.mark.usefixtures("runs_graphs")

VALUES = ROOT / "tests" / "support" / "export" / "onnxruntime_values"
DTYPES = {"float": np.float32, "float16": np.float16, "int32": np.int32}
INDEXES = "token_offset", "cumulative_sequence_length"


def read_cases(name: str) -> list[Any]:
    """Return test parameters: the cases of an operator."""
    return [pytest.param(case, id=case["name"]) for case in json.loads((VALUES / f"{name}.json").read_text())["cases"]]


def read_array(stored: Mapping[str, Any], dtype: str = "") -> Array:
    """Return a stored array; floating-point values in `dtype` if given."""
    kind = DTYPES[dtype if dtype and stored["type"] == "float" else stored["type"]]
    return np.array(stored["data"], kind).reshape(stored["shape"])


def rows_of(case: Mapping[str, Any], dtype: str) -> dict[str, Array]:
    """Return queries, keys and values; biases are added to them, because no graph has biases beside three inputs."""
    names = [name for name in ("query", "key", "value") if name in case["inputs"]]
    rows = {name: read_array(case["inputs"][name], dtype) for name in names}
    if "bias" in case["inputs"]:
        ends = np.cumsum([each.shape[1] for each in rows.values()])
        biases = np.split(read_array(case["inputs"]["bias"], dtype), ends[:-1])
        rows = {name: each + bias for (name, each), bias in zip(rows.items(), biases, strict=True)}
    return rows


def attend(case: Mapping[str, Any], dtype: str, folder: Path, function: str = ATTENTION) -> float:
    """Run the operator, and return the largest difference from the published values, per tolerance."""
    rows = rows_of(case, dtype)
    others = {name: read_array(each, dtype) for name, each in case["inputs"].items() if name not in ("bias", *rows)}
    inputs = {**rows, **others}
    places = ("query", "key", "value", "bias", *INDEXES, *(["attention_bias"] if "attention_bias" in inputs else []))
    node = helper.make_node(
        "PackedMultiHeadAttention",
        [name if name in inputs else "" for name in places],
        ["output"],
        domain="com.microsoft",
        num_heads=case["attributes"]["num_heads"],
        mask_filter_value=-10_000.0,
    )
    declared = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in inputs.items()
    ]
    output = helper.make_tensor_value_info("output", helper.np_dtype_to_tensor_dtype(rows["query"].dtype), [None, None])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "attention", declared, [output])
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), folder / "graph.onnx")
    (actual,) = open_with_standard_attention(folder / "graph.onnx", function).run(None, inputs)
    assert actual.dtype == DTYPES[dtype]
    (stored,) = case["outputs"].values()
    expected, tolerance = np.array(stored["data"]).reshape(stored["shape"]), case["tolerance"][dtype]
    allowed = tolerance["absolute"] + tolerance.get("relative", 0.0) * np.abs(expected)
    return float((np.abs(actual - expected) / allowed).max())


@pytest.mark.parametrize("case", read_cases("PackedMultiHeadAttention"))
def test_attention_gives_the_published_values(case: dict[str, Any], tmp_path: Path) -> None:
    for dtype in case["run_as"] or ["float"]:
        assert attend(case, dtype, tmp_path) <= 1


# Wrong readings of the operator: a line of the function, and the wrong lines. Each misses a published value.
WRONG_READINGS = {
    "scale left out": ("scaled = Mul (float_products, factor)", "scaled = Identity (float_products)"),
    "attention bias left out": ("scores = Add (scaled, float_bias)", "scores = Identity (scaled)"),
    "attention bias transposed": (
        "float_bias = Cast <to = 1> (attention_bias)",
        "turned = Transpose <perm = [0, 1, 3, 2]> (attention_bias) float_bias = Cast <to = 1> (turned)",
    ),
    "cells without a row seen as keys": (
        "masked_scores = Where (valid_key, scores, masked)",
        "masked_scores = Identity (scores)",
    ),
    "masked keys at the start of a line": ("CumSum <exclusive = 1>", "CumSum <exclusive = 1, reverse = 1>"),
    "softmax of the queries": ("Softmax <axis = -1>", "Softmax <axis = -2>"),
}


@pytest.mark.parametrize(("line", "wrong"), WRONG_READINGS.values(), ids=WRONG_READINGS)
def test_a_wrong_reading_of_the_operator_misses_a_published_value(line: str, wrong: str, tmp_path: Path) -> None:
    assert ATTENTION.count(line) == 1
    function = ATTENTION.replace(line, wrong)
    cases = [parameter.values[0] for parameter in read_cases("PackedMultiHeadAttention")]
    errors = [attend(each, "float", tmp_path, function) for each in cases]
    assert max(errors) > 1


@pytest.mark.parametrize("case", read_cases("index_tensors"))
def test_the_index_arrays_of_a_batch_are_those_that_onnx_runtime_documents(case: dict[str, Any]) -> None:
    lengths = np.array(case["lengths"], np.int32)
    starts = np.cumsum(lengths, dtype=np.int64) - lengths
    batch = PackedBatch(np.zeros(lengths.sum(), np.int64), lengths, starts, case["line_cells"])
    assert token_offset(batch).ravel().tolist() == case["token_offset"]
    assert cu_seqlens(batch).tolist() == case["cumulative_sequence_length"]
