"""The GPU check compares the answers of a graph before it times the graph."""

from pathlib import Path

import pytest

from bench.gpu.correctness import WrongAnswers, check_answers
from headwaiter_export.graphs.packed_cpu import PackedCpu
from headwaiter_export.graphs.tracing import write_graph
from headwaiter_server.runtime.graph import EncoderGraph
from tests.export.helpers import (
    random_encoder,
    random_sequences,
)


def test_a_graph_with_wrong_answers_is_found_before_it_is_timed(tmp_path: Path) -> None:
    encoder, path = random_encoder(feature_width=6, layers=1), tmp_path / "graph.onnx"
    write_graph(encoder, PackedCpu, path)
    graph = EncoderGraph.open(path, "cpu")
    sequences = random_sequences(encoder.config, (5, 12, 2))
    check_answers(graph, encoder, sequences, "fp32")
    with pytest.raises(WrongAnswers):
        check_answers(graph, random_encoder(feature_width=6, layers=1, mask="causal"), sequences, "fp32")
