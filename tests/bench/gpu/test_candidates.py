"""The candidate graphs for CUDA equal the formulas in onnx's reference evaluator."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from bench.gpu.candidates import FusedCuda
from bench.gpu.correctness import WrongAnswers, check_answers
from headwaiter_export.attention_layout import PackedCpu
from headwaiter_export.graphs import write_graph
from headwaiter_server.runtime.graph import EncoderGraph
from tests.export.helpers import (
    BATCH_LENGTHS,
    assert_close_to_scale,
    oracle_of,
    random_encoder,
    random_sequences,
    run_graph,
)


@pytest.mark.parametrize(
    ("choices", "nodes"),
    [
        # Feature projection, one product for queries, keys and values, output, two of feed-forward.
        ({}, {"PackedMultiHeadAttention": 1, "Gemm": 5}),
        # Rotary positions change queries and keys after their products, which therefore cannot be fused.
        ({"positions": "rotary"}, {"PackedMultiHeadAttention": 1, "Gemm": 7}),
    ],
)
def test_candidate_graphs_equal_the_formulas(choices: dict[str, Any], nodes: dict[str, int], tmp_path: Path) -> None:
    encoder = random_encoder(feature_width=6, layers=1, **choices)
    path = tmp_path / "graph.onnx"
    write_graph(encoder, FusedCuda, path)
    operators = Counter(node.op_type for node in onnx.load(path, load_external_data=False).graph.node)
    assert nodes.items() <= operators.items()
    oracle = oracle_of(encoder)
    for lengths in BATCH_LENGTHS:
        sequences = random_sequences(encoder.config, lengths)
        expected = np.concatenate([oracle.hidden(each) for each in sequences])
        assert_close_to_scale(run_graph(path, "reference", sequences).hidden, expected)


def test_a_graph_with_wrong_answers_is_found_before_it_is_timed(tmp_path: Path) -> None:
    encoder, path = random_encoder(feature_width=6, layers=1), tmp_path / "graph.onnx"
    write_graph(encoder, PackedCpu, path)
    graph = EncoderGraph.open(path, "cpu")
    sequences = random_sequences(encoder.config, (5, 12, 2))
    check_answers(graph, encoder, sequences, "fp32")
    with pytest.raises(WrongAnswers):
        check_answers(graph, random_encoder(feature_width=6, layers=1, mask="causal"), sequences, "fp32")
