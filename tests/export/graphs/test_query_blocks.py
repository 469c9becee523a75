"""Graphs for the CPU compute attention in blocks of queries, with equal results and bounded memory."""

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwaiter_export.config.choices import Mask
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_export.graphs.packed_cpu import PackedCpu
from headwaiter_server.runtime.graph import EncoderGraph, GraphOutputs
from headwaiter_server.runtime.packing import pack
from tests.support.export.helpers import (
    assert_equals_formulas,
    assert_others_change_no_bit,
    cosines,
    oracle_of,
    random_encoder,
    random_sequences,
    write_graphs,
)
from tests.support.oracle import Array
from tests.support.tiers import exhaustive

LENGTHS = (9, 5, 48, 2)
# With these limits, the four sequences above are cut into 48, 7, 2 blocks and 1 block.
BLOCK_CELLS = (1, 4 * 48 * 7, 4 * 48 * 24, 4 * 48 * 48)
# The longest sequence of the model whose memory is measured, and the most memory that it may take. All scores of a head
# would take 64 MiB, and ONNX Runtime would hold two copies of the scores of four heads.
LONG_TOKENS = 4096
MOST_BYTES = 160 << 20
# Runs one sequence of 64 tokens and one of LONG_TOKENS; prints the memory before it, at its peak and after it.
RUN_LONGEST = """
import sys
from pathlib import Path
import numpy as np
from headwaiter_server.runtime.graph import EncoderGraph
from headwaiter_server.runtime.packing import pack

def kib(name):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(name))

graph = EncoderGraph.open(Path(sys.argv[1]), "cpu", threads=1)
graph.run(pack([np.ones((64, 6), np.float32)]), hidden=False)
before = kib("VmRSS")
graph.run(pack([np.ones((int(sys.argv[2]), 6), np.float32)]), hidden=False)
print(before, kib("VmHWM"), kib("VmRSS"))
"""


@pytest.fixture(
    scope="module",
    params=[Mask.NONE, Mask.CAUSAL, *exhaustive(Mask.SELF_EXCLUDING, "distances", "alibi", "local_layers")],
)
def exported(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, runs_graphs: None
) -> tuple[EncoderGraph, Encoder]:
    """A graph with each mask, with biases by distance, or with local attention, and its encoder."""
    others: dict[str, dict[str, Any]] = {
        "distances": {"mask": "causal", "distance_bias": True, "distance_keys": True, "distance_queries": True},
        "alibi": {"positions": "alibi"},
        "local_layers": {"local_layers": [0, 1], "window": 5},
    }
    if request.param in others:
        encoder = random_encoder(feature_width=6, **others[request.param])
        path = write_graphs(encoder, tmp_path_factory.mktemp("graph"), PackedCpu)[PackedCpu]
        return EncoderGraph.open(path, "cpu", threads=1), encoder
    name = {Mask.NONE: "feature", Mask.CAUSAL: "causal", Mask.SELF_EXCLUDING: "self_excluding"}[request.param]
    path = request.getfixturevalue(f"{name}_bundle") / "packed-cpu.fp32.onnx"
    return EncoderGraph.open(path, "cpu", threads=1), request.getfixturevalue(f"{name}_encoder")


def run(graph: EncoderGraph, block_cells: int, sequences: list[Array]) -> GraphOutputs:
    outputs: GraphOutputs = graph.run(pack(sequences, block_cells=block_cells), hidden=True)
    return outputs


@pytest.mark.parametrize("block_cells", BLOCK_CELLS)
def test_blocks_of_any_length_give_the_result_of_the_formulas(
    block_cells: int, exported: tuple[EncoderGraph, Encoder]
) -> None:
    graph, encoder = exported
    assert_equals_formulas(encoder, partial(run, graph, block_cells), [random_sequences(encoder.config, LENGTHS)])


def test_lengths_below_and_above_the_limit_of_a_block_give_the_result_of_the_formulas(
    exported: tuple[EncoderGraph, Encoder],
) -> None:
    graph, encoder = exported
    batches = [random_sequences(encoder.config, (tokens,)) for tokens in (23, 24, 25, 33, 34, 35, 47, 48)]
    assert_equals_formulas(encoder, partial(run, graph, 24 * 24), batches)


@pytest.mark.parametrize("poison", [3e38, np.inf, np.nan])
@pytest.mark.parametrize("block_cells", BLOCK_CELLS[:2])
def test_in_blocks_the_content_of_other_sequences_changes_no_bit_of_a_result(
    block_cells: int, poison: float, exported: tuple[EncoderGraph, Encoder]
) -> None:
    graph, encoder = exported
    sequences = random_sequences(encoder.config, LENGTHS)
    assert_others_change_no_bit(partial(run, graph, block_cells), sequences, poison)


def test_an_int8_graph_attends_in_blocks(feature_bundle: Path, feature_encoder: Encoder) -> None:
    graph = EncoderGraph.open(feature_bundle / "packed-cpu.int8.onnx", "cpu", threads=1)
    sequences = random_sequences(feature_encoder.config, LENGTHS)
    expected = np.concatenate([oracle_of(feature_encoder).hidden(sequence) for sequence in sequences])
    for block_cells in BLOCK_CELLS:
        hidden = run(graph, block_cells, sequences).hidden
        assert hidden is not None
        assert cosines(hidden, expected).min() >= 0.99


@pytest.mark.exhaustive
@pytest.mark.usefixtures("starts_processes", "runs_graphs")
@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of a process from /proc")
def test_a_long_sequence_takes_bounded_memory_and_gives_it_back(tmp_path: Path) -> None:
    config = EncoderConfig(feature_width=6, d_model=32, heads=4, layers=1, d_ff=32, max_tokens=LONG_TOKENS)
    path = write_graphs(Encoder(config).eval(), tmp_path, PackedCpu)[PackedCpu]
    command = [sys.executable, "-c", RUN_LONGEST, str(path), str(LONG_TOKENS)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    before, peak, after = (int(kib) << 10 for kib in printed.split())
    assert peak - before <= MOST_BYTES
    assert after - before <= MOST_BYTES / 4
