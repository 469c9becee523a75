"""How fast BERT-base's shape is: Headwaiter in process and served, PyTorch, other graphs, and the device's own rate."""

import copy
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from bench.gpu.findings import Findings
from bench.gpu.latency import latency
from bench.gpu.models import BERT_BASE, random_model, served_plan, write, write_bundle
from bench.gpu.pytorch import PADDED_SEQUENCES, Padded, Runner, VariableLength, why_no_variable_length
from bench.gpu.rates import encoder_flops, matrix_rate
from bench.gpu.served import send
from bench.gpu.setting import Precision, Setting
from bench.gpu.timing import median_seconds, ratio, rounds_of
from bench.loads.traces import MEDIAN_90, LogNormal, Trace
from bench.studies.in_process import Planner
from headwaiter_client import Client
from headwaiter_export.attention_layout import PackedCpu, Portable
from headwaiter_export.attention_layout_cuda import FusedCuda, GatheredCuda, PackedCuda
from headwaiter_export.encoder import Encoder
from headwaiter_export.graphs import Written
from headwaiter_server.runtime.graph import EncoderGraph, open_session, session_options
from headwaiter_server.runtime.model import Model, open_model
from headwaiter_server.runtime.packing import pack
from testbed.server_process import RunningServer, running_server

Ids = NDArray[np.int64]
Batches = list[Sequence[Ids]]
Run = Callable[[], object]

_OURS, _SERVED, _VARIABLE = "Headwaiter, in process", "Headwaiter, served", "PyTorch, variable-length flash attention"
_ARRIVAL, _SORTED = "in arrival order", "sorted by length"
# From here on, a batch has to come near the card's own rate.
_FULL_BATCH_TOKENS = 16_384
_LOWERINGS: dict[str, tuple[type[Written], ...]] = {
    "cuda": (PackedCuda, FusedCuda, GatheredCuda, Portable),
    "cpu": (PackedCpu, Portable),
}
_DTYPES = {"fp32": torch.float32, "fp16": torch.float16}


@dataclass(frozen=True)
class Bench:
    """What is timed, and on what.

    Attributes:
        encoder: in float32, on the CPU.
        model: its bundle, opened as a server opens it.
        trace: the sequences.
        setting: where.
        findings: what is found.
    """

    encoder: Encoder
    model: Model
    trace: Trace
    setting: Setting
    findings: Findings

    def require(self, what: str, measured: float, bound: float, *, aim: bool = False) -> None:
        """Add a figure with its lower bound, which says nothing where there is no card."""
        if self.setting.tiny:
            self.findings.see(what, measured)
        else:
            self.findings.hold(what, measured, "≥", bound, aim=aim)


def speed(setting: Setting, findings: Findings) -> None:
    """Time everything on one trace in one run."""
    encoder = random_model(BERT_BASE, setting)
    model = open_model(write_bundle(encoder, None, "bert-base", setting), setting.provider, setting.fastest, None)
    lengths = LogNormal(12, 2, 64) if setting.tiny else MEDIAN_90
    # The mean is above the median, so that these are enough.
    sequences = setting.effort.trace_tokens // lengths.median_tokens
    trace = lengths.trace(sequences, encoder.config.vocabulary_size)
    bench = Bench(encoder, model, trace.first(setting.effort.trace_tokens), setting, findings)
    findings.see("sequences", f"{trace.name}: {len(bench.trace.sequences):,} of {bench.trace.tokens:,} tokens")
    with findings.attempt("throughput and latency"), ExitStack() as stack:
        server = None
        with findings.attempt("server"):
            flags = ["--provider", setting.provider, "--precision", setting.fastest, "--cache-dir", ""]
            server = stack.enter_context(running_server(model.bundle.folder, flags))
        with findings.attempt("throughput"):
            _throughput(bench, server)
        if server is not None:
            with findings.attempt("latency"):
                latency(server, model.graph, setting, findings)
    for part in (_batches, _lowerings):
        with findings.attempt(part.__name__.strip("_")):
            part(bench)


def _throughput(bench: Bench, server: RunningServer | None) -> None:
    """Compare what answers the whole trace, all in turns; without a server too."""
    runs = {_OURS: _in_process(bench)}
    if server is not None:
        runs |= _served(bench, server)
    runs |= _portable(bench) | _padded(bench) | _variable(bench)
    taken = rounds_of(runs, bench.setting, bench.findings)
    for name, seconds in taken.items():
        tokens_s = bench.trace.tokens / statistics.median(seconds)
        bench.findings.see(f"{name}, {bench.setting.fastest}: tokens/s", tokens_s)
    if (ours := taken.pop(_OURS, None)) is None:
        return
    for name, seconds in taken.items():
        times = ratio(ours, seconds)
        if name == _SERVED:
            bench.require("served by in process", ratio(seconds, ours), 0.85)
        elif name.startswith("PyTorch") and name.endswith(_ARRIVAL):
            bench.require(f"in process by {name}", times, 2.0)
        elif name == _VARIABLE:
            bench.require(f"in process by {name}", times, 1.0, aim=True)
        else:
            bench.findings.see(f"in process by {name}", times)


def _in_process(bench: Bench) -> Run:
    """Plan and run as the server does, with the whole trace waiting."""
    planner, sequences = Planner(bench.model), bench.trace.sequences
    bench.findings.see("token budget, in process", planner.limits.tokens)

    def run() -> None:
        for batch in planner.batches(sequences, len(sequences)):
            bench.model.graph.run(pack(batch), hidden=False)

    return run


def _served(bench: Bench, server: RunningServer) -> dict[str, Run]:
    """Send the trace to a server, which has measured for itself what batches cost."""
    runs: dict[str, Run] = {}
    with bench.findings.attempt(_SERVED), Client(server.address) as client:
        bench.findings.see("token budget, served", client.model().execution.token_budget)
        runs[_SERVED] = partial(send, server.address, bench.trace.sequences)
    return runs


def _portable(bench: Bench) -> dict[str, Run]:
    runs: dict[str, Run] = {}
    with bench.findings.attempt("ONNX Runtime, padded"):
        graph = _graph(bench, Portable, bench.setting.fastest)
        runs |= {f"ONNX Runtime, padded, {order}": partial(_run, graph, batches) for order, batches in _orders(bench)}
    return runs


def _padded(bench: Bench) -> dict[str, Run]:
    """Return PyTorch's ways to run padded batches; one that fails is a line in the findings."""
    runs: dict[str, Run] = {}
    for way, compiled in (("PyTorch, eager", False), ("PyTorch, torch.compile", True)):
        with bench.findings.attempt(way):
            runner = Runner(_in_pytorch(bench), Padded, bench.setting)
            if compiled:
                runner.compile()
            _see_likeness(bench, way, runner)
            runs |= {f"{way}, padded, {order}": partial(runner.run, batches) for order, batches in _orders(bench)}
    return runs


def _variable(bench: Bench) -> dict[str, Run]:
    runs: dict[str, Run] = {}
    if why := why_no_variable_length(bench.setting):
        bench.findings.skip(_VARIABLE, why)
        return runs
    with bench.findings.attempt(_VARIABLE):
        runner = Runner(_in_pytorch(bench), VariableLength, bench.setting)
        _see_likeness(bench, _VARIABLE, runner)
        runs[_VARIABLE] = partial(runner.run, in_batches(bench.trace.sequences, _FULL_BATCH_TOKENS))
    return runs


def _in_pytorch(bench: Bench) -> Encoder:
    return copy.deepcopy(bench.encoder).to(bench.setting.device, _DTYPES[bench.setting.fastest])


def _see_likeness(bench: Bench, what: str, runner: Runner) -> None:
    """Note that what is compared answers the same."""
    batch = bench.trace.sequences[:PADDED_SEQUENCES]
    ours = bench.model.graph.run(pack(batch), hidden=False).pooled
    assert ours is not None
    theirs = runner.run([batch])
    cosines = (ours * theirs).sum(1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(theirs, axis=1)
    bench.findings.see(f"{what}: smallest cosine to ours", float(cosines.min()))


def _orders(bench: Bench) -> Iterator[tuple[str, Batches]]:
    sequences, size = bench.trace.sequences, PADDED_SEQUENCES
    for order, ordered in ((_ARRIVAL, sequences), (_SORTED, sorted(sequences, key=len))):
        yield order, [ordered[start : start + size] for start in range(0, len(ordered), size)]


def _batches(bench: Bench) -> None:
    """Compare batches of several sizes, packed and run one after the other, to the device's own rate."""
    setting, findings, sequences = bench.setting, bench.findings, bench.trace.sequences
    precision = setting.fastest
    most = matrix_rate(setting, _DTYPES[precision])
    findings.see(f"matrix products of PyTorch, {precision}: TFLOP/s", most / 1e12)
    flops = encoder_flops(bench.encoder.config, map(len, sequences))
    findings.see("arithmetic of a token: MFLOP", flops / bench.trace.tokens / 1e6)
    for tokens in setting.effort.batch_tokens:
        run = partial(_run, bench.model.graph, in_batches(sequences, tokens))
        seconds = median_seconds(run, setting, setting.effort.rounds)
        what = f"batches of {tokens:,} tokens, {precision}"
        findings.see(f"{what}: tokens/s", bench.trace.tokens / seconds)
        share = f"{what}: share of the matrix rate"
        if tokens >= _FULL_BATCH_TOKENS:
            bench.require(share, flops / seconds / most, 0.35)
            bench.require(share, flops / seconds / most, 0.45, aim=True)
        else:
            findings.see(share, flops / seconds / most)


def _lowerings(bench: Bench) -> None:
    """Compare the ways to write attention, in batches of one size."""
    setting = bench.setting
    tokens = min(_FULL_BATCH_TOKENS, max(setting.effort.batch_tokens))
    batches = in_batches(bench.trace.sequences, tokens)
    for precision in setting.precisions:
        for lowering in _LOWERINGS[setting.provider]:
            what = f"{lowering.__name__}, {precision}, batches of {tokens:,} tokens: tokens/s"
            with bench.findings.attempt(what):
                _time_graph(bench, what, _graph(bench, lowering, precision), batches)
    what = f"{setting.fastest} as it is served, with neither bound buffers nor rounded sizes: tokens/s"
    with bench.findings.attempt(what):
        path = bench.model.bundle.folder / bench.model.graph_file
        session = open_session(path, setting.provider, session_options(None))
        _time_graph(bench, what, EncoderGraph(session), batches)


def _time_graph(bench: Bench, what: str, graph: EncoderGraph, batches: Batches) -> None:
    seconds = median_seconds(partial(_run, graph, batches), bench.setting, bench.setting.effort.rounds)
    bench.findings.see(what, bench.trace.tokens / seconds)


def _graph(bench: Bench, lowering: type[Written], precision: Precision) -> EncoderGraph:
    """Open a graph, written unless it is there already; the bundle holds those that are served."""
    plan = served_plan(bench.setting, precision)
    path = bench.setting.folder / f"{lowering.__name__}.{precision}.onnx"
    if lowering is plan.lowering:
        path = bench.model.bundle.folder / plan.file
    elif not path.exists():
        write(bench.encoder, lowering, precision, path)
    return EncoderGraph.open(path, bench.setting.provider)


def _run(graph: EncoderGraph, batches: Batches) -> None:
    for batch in batches:
        graph.run(pack(batch), hidden=False)


def in_batches(sequences: Sequence[Ids], tokens: int) -> Batches:
    """Cut a trace, in the order of arrival, into batches of at most so many tokens."""
    batches: list[list[Ids]] = []
    room = 0
    for ids in sequences:
        if len(ids) > room:
            batches.append([])
            room = tokens
        batches[-1].append(ids)
        room -= len(ids)
    return [*batches]
