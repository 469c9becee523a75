"""The GPU check compares the answers of a graph before it times the graph."""

from dataclasses import replace
from pathlib import Path

import pytest

from bench.gpu.correctness import WrongAnswers, check_answers
from headwaiter_export.config.choices import Mask
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_server.runtime.graph import EncoderGraph
from tests.support.export.helpers import random_sequences


@pytest.mark.exhaustive
def test_a_graph_with_wrong_answers_is_found_before_it_is_timed(feature_encoder: Encoder, feature_bundle: Path) -> None:
    graph = EncoderGraph.open(feature_bundle / "packed-cpu.fp32.onnx", "cpu")
    sequences = random_sequences(feature_encoder.config, (5, 12, 2))
    check_answers(graph, feature_encoder, sequences, "fp32")
    masked = Encoder(replace(feature_encoder.config, mask=Mask.CAUSAL))
    masked.load_state_dict(feature_encoder.state_dict())
    with pytest.raises(WrongAnswers):
        check_answers(graph, masked.eval(), sequences, "fp32")
