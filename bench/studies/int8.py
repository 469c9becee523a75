"""The speed of int8 against fp32 on one core, and the accuracy that the export measured, for all-MiniLM-L6-v2."""

from dataclasses import dataclass
from functools import partial

from bench.loads.traces import MEDIAN_30, MEDIAN_90, in_batches
from bench.processes import SERVER_CORE, own_cpu_s, pin
from bench.rounds import Rounds
from bench.run import Run
from headwaiter_proto.encoder_pb2 import PRECISION_INT8
from headwaiter_server.runtime.bundle import Bundle
from headwaiter_server.runtime.graph import EncoderGraph
from headwaiter_server.runtime.packing import PackedBatch, pack
from testbed.minilm import bundle

INT8 = "int8"
_ROUNDS = 3
_BATCH_TOKENS = 512
_SEQUENCES = {MEDIAN_30: 1200, MEDIAN_90: 500}


@dataclass(frozen=True)
class Int8Speed:
    """Tokens per CPU second of the packed graphs, run without a server, and the ratio int8 / fp32, in each round."""

    trace: str
    fp32_tokens_per_cpu_s: Rounds
    int8_tokens_per_cpu_s: Rounds
    ratio: Rounds


def int8(run: Run) -> list[Int8Speed]:
    """Measure both graphs in turn, and record the accuracy that the export measured."""
    pin(SERVER_CORE)
    opened = Bundle.open(bundle())
    graphs = [
        EncoderGraph.open(opened.folder / f"packed-cpu.{precision}.onnx", "cpu", threads=1)
        for precision in ("fp32", "int8")
    ]
    speeds = []
    for lengths, sequences in _SEQUENCES.items():
        trace = lengths.trace(sequences, opened.manifest.vocabulary_size)
        batches = [pack(batch) for batch in in_batches(sorted(trace.sequences, key=len), _BATCH_TOKENS)]
        rates = [[trace.tokens / own_cpu_s(partial(_run, graph, batches)) for graph in graphs] for _ in range(_ROUNDS)]
        fp32, int8 = map(Rounds, zip(*rates, strict=True))
        speeds.append(Int8Speed(trace.name, fp32, int8, int8 / fp32))
    (parity,) = (graph for graph in opened.parity().graphs if graph.precision == PRECISION_INT8)
    (graph,) = (graph for graph in opened.manifest.graphs if graph.precision == PRECISION_INT8)
    findings = run.figures.findings.of_part(INT8)
    findings.record("smallest cosine to PyTorch", f"{parity.min_cosine:.4f}")
    findings.record("mean cosine to PyTorch", f"{parity.mean_cosine:.4f}")
    neighbours = f"{parity.same_nearest_neighbour:.1%}"
    findings.record("share of sentences with the same nearest neighbour as in fp32", neighbours)
    findings.record("linear layers that stay in fp32", ", ".join(graph.float32_layers) or "none")
    return speeds


def _run(graph: EncoderGraph, batches: list[PackedBatch]) -> None:
    for batch in batches:
        graph.run(batch, hidden=False)
