"""What int8 gains on one core over float32, and what it costs, on all-MiniLM-L6-v2.

Run as `python -m bench.studies.int8`; it prints a table.
"""

import statistics
import time

import numpy as np
from numpy.typing import NDArray

from bench.loads.traces import MEDIAN_30, MEDIAN_90, Trace
from bench.measure import pin
from headwaiter_proto.encoder_pb2 import PRECISION_INT8
from headwaiter_server.runtime.bundle import Bundle
from headwaiter_server.runtime.graph import EncoderGraph
from headwaiter_server.runtime.packing import PackedBatch, pack
from testbed.minilm import bundle

ROUNDS = 3
BATCH_TOKENS = 512
_SEQUENCES = {MEDIAN_30: 1200, MEDIAN_90: 500}


def table() -> list[str]:
    """Measure both graphs in turns, and return a table in Markdown and what the export found."""
    pin(0)
    opened = Bundle.open(bundle())
    float32, int8 = (
        EncoderGraph.open(opened.folder / f"packed-cpu.{precision}.onnx", "cpu", threads=1)
        for precision in ("fp32", "int8")
    )
    lines = ["| trace | fp32 | int8 | int8 / fp32 |", "|---|---|---|---|"]
    for lengths, sequences in _SEQUENCES.items():
        trace = lengths.trace(sequences, opened.manifest.vocabulary_size)
        batches = in_batches(trace)
        rounds = [(cpu_s(float32, batches), cpu_s(int8, batches)) for _ in range(ROUNDS)]
        rates = [trace.tokens / statistics.median(seconds) for seconds in zip(*rounds, strict=True)]
        ratio = statistics.median(before / after for before, after in rounds)
        lines.append(f"| {trace.name} | {rates[0]:,.0f} | {rates[1]:,.0f} | {ratio:.2f} |")
    (parity,) = (graph for graph in opened.parity().graphs if graph.precision == PRECISION_INT8)
    (graph,) = (graph for graph in opened.manifest.graphs if graph.precision == PRECISION_INT8)
    return [
        *lines,
        "",
        f"Cosine to PyTorch: {parity.min_cosine:.4f} or more, {parity.mean_cosine:.4f} on average. The same nearest "
        f"neighbour: {parity.same_nearest_neighbour:.1%} of",
        f"1,000 sentences. Linear layers in fp32: {', '.join(graph.float32_layers) or 'none'}.",
    ]


def in_batches(trace: Trace) -> list[PackedBatch]:
    """Return a trace's sequences, sorted by length, in batches of at most `BATCH_TOKENS`."""
    batches: list[PackedBatch] = []
    waiting: list[NDArray[np.int64]] = []
    for sequence in sorted(trace.sequences, key=len):
        if sum(map(len, waiting)) + len(sequence) > BATCH_TOKENS:
            batches.append(pack(waiting))
            waiting = []
        waiting.append(sequence)
    return [*batches, pack(waiting)]


def cpu_s(graph: EncoderGraph, batches: list[PackedBatch]) -> float:
    """Return the processor's seconds that batches take."""
    started_s = time.process_time()
    for batch in batches:
        graph.run(batch, hidden=False)
    return time.process_time() - started_s


if __name__ == "__main__":
    print("\n".join(table()))
