"""The graph of a module computes the same from rewritten weights, and keeps what cannot be rewritten."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from headwaiter_export.graphs.module_weights import cut_products, fold_tables
from tests.support.oracle import Array

TOKENS, IDS, TYPES, WIDTH = 5, 9, 2, 6
DRAWN = np.random.default_rng(0)
CONSTANTS: dict[str, Any] = {
    **{
        name: DRAWN.standard_normal(shape, np.float32)
        for name, shape in {
            "weight": (12, WIDTH),
            "transposed": (WIDTH, 12),
            "bias": (12,),
            "words": (IDS, WIDTH),
            "types": (TYPES, WIDTH),
            "places": (IDS, WIDTH),
        }.items()
    },
    "by_heads": [1, -1, 3, 2, 2],
    "halves": [8, 4],
    "zero": [0],
    "one": [1],
    "two": [2],
    "all": [np.iinfo(np.int64).max],
    "first_and_last": [0, -1],
    "scalar": 1,
    "zeros": np.zeros((1, IDS), np.int64),
    "ones_and_zeros": np.arange(IDS)[None] % 2,
    "numbers": np.arange(IDS)[None],
    "reversed": np.arange(IDS)[None, ::-1],
}
INPUTS = f"float[T, {WIDTH}] x, int64[1, T] ids, int64[T] positions"
X = DRAWN.standard_normal((TOKENS, WIDTH), np.float32)
FEEDS = {"x": X, "ids": DRAWN.integers(0, IDS, (1, TOKENS)), "positions": np.array([0, 1, 0, 1, 2])}


def graph(operators: str, changed: dict[str, Any] | None = None) -> onnx.ModelProto:
    """Return the graph of some operators; the results that no operator reads are its outputs."""
    header = '<ir_version: 10, opset_import: ["" : 20]>'
    model = onnx.parser.parse_model(f"{header} graph ({INPUTS}) => () {{{operators}}}")
    for name, numbers in {**CONSTANTS, **(changed or {})}.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(numbers), name))
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    read = {name for node in model.graph.node for name in node.input}
    model.graph.output.extend(each for each in model.graph.value_info if each.name not in read)
    return model


def rewritten(model: onnx.ModelProto, rewrite: Callable[[ir.Model], None]) -> onnx.ModelProto:
    new = ir.from_proto(model)
    rewrite(new)
    proto = ir.to_proto(new)
    onnx.checker.check_model(proto, full_check=True)
    return proto


def run(model: onnx.ModelProto) -> list[Array]:
    return [np.asarray(each) for each in ReferenceEvaluator(model).run(None, FEEDS)]


def counts(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


ROWS = "y = Gemm <transB = 1> (x, weight, bias) rows = Unsqueeze (y, zero) "
HEADS = ROWS + "heads = Reshape (rows, by_heads) "


@pytest.mark.parametrize(
    "operators",
    [
        ROWS + "a, b = Split <axis = 2> (rows, halves)",
        ROWS + "a, b = Split <axis = -1> (rows, halves)",
        HEADS + "a = Slice (heads, zero, one, two) b = Slice (heads, one, all, two, one)",
        HEADS + "a = Gather <axis = 2> (heads, scalar) b = Gather <axis = 2> (heads, one)",
        "y = Gemm (x, transposed, bias) a, b = Split <axis = 1> (y, halves)",
        "y = Gemm <transB = 1> (x, weight) a, b = Split <axis = 1> (y, halves)",
    ],
)
def test_parts_of_a_product_are_computed_apart(operators: str) -> None:
    model = graph(operators)
    new = rewritten(model, cut_products)
    assert {name: counts(new)[name] for name in ("Gemm", "Split", "Slice", "Gather")} == {
        "Gemm": 2,
        "Split": 0,
        "Slice": 0,
        "Gather": 0,
    }
    for actual, expected in zip(run(new), run(model), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-6, strict=True)


@pytest.mark.parametrize(
    "operators",
    [
        ROWS + "a, b = Split <axis = 2> (rows, halves) c = Neg (rows)",
        ROWS + "a = Slice (rows, zero, two, one) b = Slice (rows, two, all, one)",
        ROWS + "a = Slice (rows, zero, all, two, two) b = Slice (rows, one, all, two, two)",
        HEADS + "a = Gather <axis = 2> (heads, first_and_last) b = Gather <axis = 2> (heads, one)",
        "z = Gemm <transB = 1> (x, x) y = Gemm (z, x) a, b = Split <axis = 1, num_outputs = 2> (y)",
    ],
)
def test_a_product_stays_whole_unless_all_that_reads_it_takes_neighbouring_columns(operators: str) -> None:
    model = graph(operators)
    assert counts(rewritten(model, cut_products)) == counts(model)


def test_a_product_in_float16_stays_whole() -> None:
    halves = {name: CONSTANTS[name].astype(np.float16) for name in ("weight", "bias")}
    operators = "h = Cast <to = 10> (x) y = Gemm <transB = 1> (h, weight, bias) a, b = Split <axis = 1> (y, halves)"
    model = graph(operators, halves)
    assert counts(rewritten(model, cut_products)) == counts(model)


WORDS = "word = Gather (words, ids) "
SUM = "type = Gather (types, index) a = Add (word, type) "


@pytest.mark.parametrize(
    "operators",
    [
        "place = Unsqueeze (positions, zero) index = GatherElements <axis = 1> (zeros, place) " + WORDS + SUM,
        "size = Shape (ids) index = Expand (scalar, size) " + WORDS + SUM,
        "size = Shape (ids) index = Expand (scalar, size) "
        + WORDS
        + "type = Gather (types, index) a = Add (type, word)",
    ],
)
def test_a_row_that_all_tokens_take_is_folded_into_the_other_table(operators: str) -> None:
    model = graph(operators)
    new = rewritten(model, fold_tables)
    assert counts(new) == {"Gather": 1}
    (actual,), (expected,) = run(new), run(model)
    assert np.array_equal(actual, expected)


@pytest.mark.parametrize(
    ("operators", "kept"),
    [
        # The table is read elsewhere, or the other part of the sum comes from no table.
        ("index = Expand (scalar, size) other = Gather (words, positions) " + WORDS + SUM, {"Gather": 2, "Add": 1}),
        ("index = Expand (scalar, size) word = Unsqueeze (x, zero) " + SUM, {"Unsqueeze": 1, "Add": 1}),
    ],
)
def test_a_row_that_all_tokens_take_is_added_as_a_constant_to_anything_else(
    operators: str, kept: dict[str, int]
) -> None:
    model = graph("size = Shape (ids) " + operators)
    new = rewritten(model, fold_tables)
    assert counts(new) == kept
    for actual, expected in zip(run(new), run(model), strict=True):
        assert np.array_equal(actual, expected)


@pytest.mark.parametrize(
    "operators",
    [
        "place = Unsqueeze (positions, zero) index = GatherElements <axis = 1> (ones_and_zeros, place) " + WORDS + SUM,
        "index = Identity (ids) " + WORDS + SUM.replace("types", "places"),
    ],
)
def test_rows_that_differ_between_tokens_are_looked_up(operators: str) -> None:
    model = graph(operators)
    assert counts(rewritten(model, fold_tables)) == counts(model)


@pytest.mark.parametrize(
    ("table", "index", "lookups"),
    [("numbers", "positions", 1), ("reversed", "positions", 2), ("zeros", "positions", 2), ("numbers", "flat", 2)],
)
def test_positions_are_not_looked_up_in_a_table_of_their_own(table: str, index: str, lookups: int) -> None:
    flat = "flat = Squeeze (ids, zero) "
    model = graph(f"{flat}place = Gather <axis = 1> ({table}, {index}) a = Gather (places, place)")
    new = rewritten(model, fold_tables)
    assert counts(new)["Gather"] == lookups
    (actual, *_), (expected, *_) = run(new)[::-1], run(model)[::-1]
    assert np.array_equal(actual, expected)
