"""The speed of int8 against fp32 on one core, and the accuracy that the export measured, for all-MiniLM-L6-v2."""

import statistics
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.loads.traces import MEDIAN_30, MEDIAN_90, Trace
from bench.measure import median_ratio
from bench.processes import SERVER_CORE, pin
from headwaiter_proto.encoder_pb2 import PRECISION_INT8
from headwaiter_server.runtime.bundle import Bundle
from headwaiter_server.runtime.graph import EncoderGraph
from headwaiter_server.runtime.packing import PackedBatch, pack
from testbed.minilm import bundle

ROUNDS = 3
BATCH_TOKENS = 512
_SEQUENCES = {MEDIAN_30: 1200, MEDIAN_90: 500}


@dataclass(frozen=True)
class Int8Speed:
    """Tokens per CPU second of the packed graphs alone.

    Attributes:
        trace: name of the trace.
        fp32_tokens_per_cpu_s: median of the fp32 graph.
        int8_tokens_per_cpu_s: median of the int8 graph.
        ratio: median of int8 / fp32 in each round.
    """

    trace: str
    fp32_tokens_per_cpu_s: float
    int8_tokens_per_cpu_s: float
    ratio: float


@dataclass(frozen=True)
class Int8:
    """Speed and accuracy of int8.

    Attributes:
        speeds: speed on each trace.
        accuracy: the accuracy that the export measured, in one sentence per fact.
    """

    speeds: list[Int8Speed]
    accuracy: str


def int8() -> Int8:
    """Measure both graphs in turns."""
    pin(SERVER_CORE)
    opened = Bundle.open(bundle())
    graphs = [
        EncoderGraph.open(opened.folder / f"packed-cpu.{precision}.onnx", "cpu", threads=1)
        for precision in ("fp32", "int8")
    ]
    speeds = []
    for lengths, sequences in _SEQUENCES.items():
        trace = lengths.trace(sequences, opened.manifest.vocabulary_size)
        batches = sorted_batches(trace)
        rounds = [[trace.tokens / _cpu_s(graph, batches) for graph in graphs] for _ in range(ROUNDS)]
        fp32, int8 = ([rates[graph] for rates in rounds] for graph in range(2))
        speeds.append(Int8Speed(trace.name, statistics.median(fp32), statistics.median(int8), median_ratio(int8, fp32)))
    (parity,) = (graph for graph in opened.parity().graphs if graph.precision == PRECISION_INT8)
    (graph,) = (graph for graph in opened.manifest.graphs if graph.precision == PRECISION_INT8)
    accuracy = (
        f"Cosine to PyTorch: at least {parity.min_cosine:.4f}, {parity.mean_cosine:.4f} on average. Same nearest "
        f"neighbour as in fp32: for {parity.same_nearest_neighbour:.1%} of 1,000 sentences.\n"
        f"Linear layers that stay in fp32: {', '.join(graph.float32_layers) or 'none'}."
    )
    return Int8(speeds, accuracy)


def sorted_batches(trace: Trace) -> list[PackedBatch]:
    """Return the sequences of a trace, sorted by length, in batches of at most `BATCH_TOKENS`."""
    batches: list[PackedBatch] = []
    batch: list[NDArray[np.int64]] = []
    for sequence in sorted(trace.sequences, key=len):
        if sum(map(len, batch)) + len(sequence) > BATCH_TOKENS:
            batches.append(pack(batch))
            batch = []
        batch.append(sequence)
    return [*batches, pack(batch)]


def _cpu_s(graph: EncoderGraph, batches: list[PackedBatch]) -> float:
    started_s = time.process_time()
    for batch in batches:
        graph.run(batch, hidden=False)
    return time.process_time() - started_s
