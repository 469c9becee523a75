"""The attention weights graph returns the selected layers and heads, and takes every type of input."""

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

from headwaiter_server.runtime.attention_weights import AttentionSelection, AttentionWeightsGraph
from headwaiter_server.runtime.bundle import Bundle

EVERYTHING = AttentionSelection(range(2), range(3), 1)


@pytest.fixture(scope="module")
def graph(feature_bundle: Path) -> AttentionWeightsGraph:
    """A graph of two layers with three heads of eight values each."""
    return AttentionWeightsGraph.open(feature_bundle / Bundle.open(feature_bundle).manifest.attend.file)


def _features(tokens: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    return np.random.default_rng(3).standard_normal((tokens, 6), np.float32)


def test_layers_and_heads_have_the_order_of_the_selection(graph: AttentionWeightsGraph) -> None:
    everything = graph.run(_features(5), EVERYTHING)
    assert everything.context is not None
    assert (everything.weights.shape, everything.context.shape) == ((2, 3, 5, 5), (2, 3, 8))
    some = graph.run(_features(5), AttentionSelection([1, 0], [2, 0], 1))
    np.testing.assert_array_equal(some.weights, everything.weights[[1, 0]][:, [2, 0]])
    np.testing.assert_array_equal(some.context, everything.context[[1, 0]][:, [2, 0]])


def test_without_a_query_there_is_no_context(graph: AttentionWeightsGraph) -> None:
    attention = graph.run(_features(1), AttentionSelection([1], [0]))
    assert attention.context is None
    assert attention.weights.tolist() == [[[[1.0]]]]


def test_a_graph_of_an_older_version_has_no_vectors(feature_bundle: Path, tmp_path: Path) -> None:
    old = onnx.load(feature_bundle / "attend.fp32.onnx", load_external_data=False)
    outputs = [each for each in old.graph.output if each.name.startswith(("weights", "context"))]
    del old.graph.output[:]
    old.graph.output.extend(outputs)
    shutil.copy(feature_bundle / "weights.fp32.bin", tmp_path)
    onnx.save(old, tmp_path / "old.onnx")
    graph = AttentionWeightsGraph.open(tmp_path / "old.onnx")
    graph.check(layers=2, heads=3)
    attention = graph.run(_features(5), AttentionSelection([1], [2], 3, vectors=True))
    assert attention.vectors is None
    assert attention.context is not None


def test_half_precision_features_and_32_bit_ids_are_accepted(graph: AttentionWeightsGraph, text_bundle: Path) -> None:
    half = _features(4).astype(np.float16)
    expected = graph.run(half.astype(np.float32), EVERYTHING)
    np.testing.assert_array_equal(graph.run(half, EVERYTHING).weights, expected.weights)
    of_ids = AttentionWeightsGraph.open(text_bundle / "attend.fp32.onnx")
    wide, narrow = (of_ids.run(np.array([1, 2, 3], dtype), EVERYTHING) for dtype in (np.int64, np.int32))
    np.testing.assert_array_equal(wide.weights, narrow.weights)
