"""The candidate graphs for CUDA equal the formulas in onnx's reference evaluator."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from bench.gpu.candidates import FusedCuda, GatheredCuda
from headwaiter_export.attention_layout_cuda import CudaLayout
from headwaiter_export.bundle import to_float16
from headwaiter_export.graphs import write_graph
from tests.export.helpers import (
    BATCH_LENGTHS,
    assert_close_to_scale,
    cosines,
    oracle_of,
    random_encoder,
    random_sequences,
    run_graph,
)


@pytest.mark.parametrize(
    ("layout", "choices", "nodes"),
    [
        # Feature projection, one product for queries, keys and values, output, two of feed-forward.
        (FusedCuda, {}, {"PackedMultiHeadAttention": 1, "Gemm": 5}),
        # Rotary positions change queries and keys after their products, which therefore cannot be fused.
        (FusedCuda, {"positions": "rotary"}, {"PackedMultiHeadAttention": 1, "Gemm": 7}),
        (GatheredCuda, {"value_dim": 4}, {"MultiHeadAttention": 1, "Gemm": 7}),
        (GatheredCuda, {"mask": "causal"}, {"MultiHeadAttention": 1, "Gemm": 7}),
    ],
)
def test_candidate_graphs_equal_the_formulas(
    layout: type[CudaLayout], choices: dict[str, Any], nodes: dict[str, int], tmp_path: Path
) -> None:
    encoder = random_encoder(feature_width=6, layers=1, **choices)
    path = tmp_path / "graph.onnx"
    write_graph(encoder, layout, path)
    operators = Counter(node.op_type for node in onnx.load(path, load_external_data=False).graph.node)
    assert nodes.items() <= operators.items()
    oracle = oracle_of(encoder)
    for lengths in BATCH_LENGTHS:
        sequences = random_sequences(encoder.config, lengths)
        expected = np.concatenate([oracle.hidden(each) for each in sequences])
        assert_close_to_scale(run_graph(path, "reference", sequences).hidden, expected)


def test_a_gathered_graph_in_half_precision_hides_every_token_from_itself(tmp_path: Path) -> None:
    encoder = random_encoder(feature_width=6, layers=1, mask="self_excluding")
    oracle, path = oracle_of(encoder), tmp_path / "graph.onnx"
    write_graph(to_float16(encoder), GatheredCuda, path)
    sequences = random_sequences(encoder.config, (5, 48, 2))
    hidden = run_graph(path, "reference", sequences).hidden
    assert hidden is not None
    assert hidden.dtype == np.float16
    assert cosines(hidden, np.concatenate([oracle.hidden(each) for each in sequences])).min() >= 0.9999
