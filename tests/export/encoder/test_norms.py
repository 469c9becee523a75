"""ONNX Runtime computes RMSNorm in one operator, and in float32 even if the rows are float16."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from headwaiter_export.encoder.norms import RmsNorm
from headwaiter_export.graphs.packed_cpu import PackedCpu
from headwaiter_export.graphs.portable import Portable
from headwaiter_server.runtime.graph import open_session, session_options
from tests.support.export.helpers import (
    assert_close_to_scale,
    operators_of,
    oracle_of,
    random_encoder,
    run_graph,
    write_graphs,
)
from tests.support.oracle import rms_norm

pytestmark = pytest.mark.usefixtures("runs_graphs")


@pytest.mark.exhaustive
@pytest.mark.parametrize("layout", [PackedCpu, Portable])
def test_onnx_runtime_fuses_rms_norms_of_standard_operators(
    layout: type[PackedCpu] | type[Portable], tmp_path: Path
) -> None:
    encoder = random_encoder(feature_width=6, gated=True, rms_norm=True, norm="pre", final_norm=True)
    path = write_graphs(encoder, tmp_path, layout)[layout]
    assert {node.domain for node in onnx.load(path, load_external_data=False).graph.node} == {""}
    options = session_options(1)
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    open_session(path, "cpu", options)
    operators = operators_of(tmp_path / "optimized.onnx")
    # On the embeddings, before both blocks of two layers, and after the last layer.
    assert operators["SimplifiedLayerNormalization"] == 6
    assert operators["LayerNormalization"] == 0


@pytest.mark.exhaustive
def test_an_rms_norm_of_zeros_is_zero_in_a_graph(tmp_path: Path) -> None:
    rows = {"feature_width": 24, "feature_projection": False, "positions": "none"}
    encoder = random_encoder(**rows, rms_norm=True, norm="pre", norm_eps=1e-12)
    path = write_graphs(encoder, tmp_path, PackedCpu)[PackedCpu]
    zeros = np.zeros((3, 24), np.float32)
    assert_close_to_scale(run_graph(path, "cpu", [zeros]).hidden, oracle_of(encoder).hidden(zeros))


def test_an_rms_norm_of_float16_rows_whose_squares_exceed_float16_is_finite() -> None:
    rows = torch.tensor([[30_000.0, -40_000.0, 1.0, 0.0], [1e-3, 2e-3, 0.0, 0.0]])
    norm = RmsNorm(4, 1e-5)
    expected = rms_norm(rows.double().numpy(), np.ones(4), 1e-5)
    assert_close_to_scale(norm(rows).detach().numpy(), expected)
    half = norm.half()(rows.half()).detach().numpy()
    assert half.dtype == np.float16
    np.testing.assert_allclose(half, expected, atol=2e-3)
