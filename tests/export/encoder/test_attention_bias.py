"""Masks, windows, linear biases and tables of distances in graphs equal the formulas, on CUDA in fp32 and in fp16.

Packed attention adds them to the scores as one array over N × N positions, and N is rounded up to a multiple of 16. So
the longest sequence of these encoders is no multiple of 16.
"""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headwaiter_export.encoder.encoder import Encoder
from headwaiter_export.encoder.reference import concatenate, run_in_pytorch
from headwaiter_export.graphs.float16 import to_float16
from headwaiter_export.graphs.graph_layout import Packed
from headwaiter_export.graphs.packed_cpu import PackedCpu
from headwaiter_export.graphs.packed_cuda import PackedCuda
from headwaiter_export.graphs.portable import Portable
from headwaiter_export.graphs.tracing import write_graph
from headwaiter_server.runtime.graph import EncoderGraph, GraphOutputs
from headwaiter_server.runtime.packing import pack
from tests.support.export.helpers import (
    RUNTIMES,
    assert_close_to_scale,
    assert_equals_formulas,
    cosines,
    operators_of,
    oracle_of,
    random_encoder,
    random_sequences,
    run_graph,
    write_graphs,
)
from tests.support.oracle import Array
from tests.support.tiers import exhaustive

pytestmark = pytest.mark.usefixtures("runs_graphs")

LONGEST = 45
# The last batch has more sequences than a shape bucket.
BATCHES = ((1,), (LONGEST,), (LONGEST, 1, 17), (5, 31, 1, 12, LONGEST, 2, 9, 3, 7))
# Far below ONNX Runtime's default score of masked keys, −10,000, and exact in float16.
LOW_SCORE = -20_000.0
FORMS: dict[str, dict[str, Any]] = {
    # Only the last layer has a window. A large epsilon changes the results of the norms.
    "linear": {"positions": "alibi", "layers": 2, "local_layers": [1], "window": 6, "norm_eps": 0.3},
    "tables": {"distance_bias": True, "layers": 3, "local_layers": [2], "window": 6},
    # No kernel has these products, so attention is gathered.
    "products": {"mask": "causal", "layers": 1, "distance_bias": True, "distance_queries": True},
}


def biased_encoder(form: str) -> Encoder:
    """Build an encoder.

    If it has tables, the heads of the last layer but the first have scores of 0 for later tokens, and otherwise of
    LOW_SCORE. So tokens at the end of a sequence have no other scores, and with a causal mask no token has.
    """
    encoder = random_encoder(feature_width=6, d_ff=0, max_tokens=LONGEST, **FORMS[form])
    config = encoder.config
    if config.distance_bias:
        attention = encoder.get_submodule(f"layers.{config.layers - 1}.attention")
        for name in ("query.weight", "query.bias"):
            attention.get_parameter(name).data[config.head_dim :] = 0
        if config.distance_queries:
            attention.get_parameter("distance_queries.table").data[1:] = 0
        later = torch.arange(2 * LONGEST - 1) > LONGEST - 1
        attention.get_parameter("distances.table").data[1:] = torch.where(later, 0.0, LOW_SCORE)
    return encoder


@pytest.mark.parametrize(
    ("form", "half"),
    [
        *exhaustive(("linear", False)),
        # The graph in fp16 is traced in the same way.
        *exhaustive(("tables", False)),
        ("tables", True),
        # In every run, the double of CUDA runs such a graph.
        *exhaustive(("products", False)),
    ],
)
def test_biases_and_masks_equal_the_formulas_at_lengths_that_are_rounded_up(
    form: str, half: bool, tmp_path: Path
) -> None:
    encoder, path = biased_encoder(form), tmp_path / "graph.onnx"
    write_graph(to_float16(encoder) if half else encoder, PackedCuda, path)
    assert (operators_of(path)["PackedMultiHeadAttention"] == 0) == (form == "products")
    oracle = oracle_of(encoder)
    for lengths in BATCHES:
        sequences = random_sequences(encoder.config, lengths)
        expected = np.concatenate([oracle.hidden(each) for each in sequences])
        hidden = run_graph(path, RUNTIMES[PackedCuda], sequences).hidden
        assert hidden is not None
        if half:
            assert cosines(hidden, expected).min() >= 0.9999
        else:
            assert_close_to_scale(hidden, expected)


@pytest.mark.parametrize("layout", [PackedCpu, PackedCuda, *exhaustive(Portable)])
def test_distances_in_a_grid_equal_the_formulas(layout: type[Packed | Portable], tmp_path: Path) -> None:
    # 17 rows, which are rounded up.
    grid = {"distance_bias": True, "distance_grid": 4, "prefix_rows": 1, "max_tokens": 17, "fixed_length": True}
    encoder = random_encoder(feature_width=6, **grid)
    path = write_graphs(encoder, tmp_path, layout)[layout]
    images = [random_sequences(encoder.config, [17] * count) for count in (1, 3)]
    assert_equals_formulas(encoder, lambda batch: concatenate(run_in_pytorch(encoder, batch)), images)
    assert_equals_formulas(encoder, partial(run_graph, path, RUNTIMES[layout]), images)


@pytest.mark.exhaustive
def test_a_grid_in_blocks_of_queries_equals_the_formulas(tmp_path: Path) -> None:
    grid = {"distance_bias": True, "distance_grid": 5, "prefix_rows": 1, "max_tokens": 26, "fixed_length": True}
    encoder = random_encoder(feature_width=6, **grid)
    graph = EncoderGraph.open(write_graphs(encoder, tmp_path, PackedCpu)[PackedCpu], "cpu", threads=1)
    images = random_sequences(encoder.config, [26, 26])

    def run(cells: int, batch: list[Array]) -> GraphOutputs:
        outputs: GraphOutputs = graph.run(pack(batch, block_cells=cells), hidden=True)
        return outputs

    for cells in (1, 2 * 26 * 7, 2 * 26 * 26):
        assert_equals_formulas(encoder, partial(run, cells), [images])
