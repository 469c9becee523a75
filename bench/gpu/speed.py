"""Speed of a BERT-base encoder: Headwaiter in process and served, PyTorch, other graphs, and the matrix rate."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from bench.findings import Findings
from bench.gpu.candidates import FusedCuda, GatheredCuda
from bench.gpu.latency import latency
from bench.gpu.models import BERT_BASE, random_model, served_plan, write, write_bundle
from bench.gpu.pytorch import PADDED_SEQUENCES, Padded, Runner, VariableLength, varlen_unavailable_reason
from bench.gpu.settings import Precision, Settings
from bench.gpu.timing import encoder_flops, matrix_rate, median_seconds, rounds_of
from bench.loads.raw_calls import closed_loop, raise_first_error
from bench.loads.traces import MEDIAN_90, Ids, LogNormal, Trace, in_batches
from bench.studies.in_process import Planner
from headwaiter_client import Client
from headwaiter_export.attention_layout import PackedCpu, Portable
from headwaiter_export.attention_layout_cuda import PackedCuda
from headwaiter_export.encoder import Encoder
from headwaiter_export.graphs import GraphLayout
from headwaiter_server.runtime.graph import EncoderGraph, open_session, session_options
from headwaiter_server.runtime.model import Model, open_model
from headwaiter_server.runtime.packing import pack
from testbed.server_process import RunningServer, running_server

Batches = list[Sequence[Ids]]
Run = Callable[[], object]

_IN_PROCESS, _SERVED = "Headwaiter, in process", "Headwaiter, served"
_VARIABLE = "PyTorch, variable-length flash attention"
_ARRIVAL, _SORTED = "in arrival order", "sorted by length"
# Batches of this size and more must come near the GPU's matrix rate.
_FULL_BATCH_TOKENS = 16_384
_LAYOUTS: dict[str, tuple[type[GraphLayout], ...]] = {
    "cuda": (PackedCuda, FusedCuda, GatheredCuda, Portable),
    "cpu": (PackedCpu, Portable),
}
_DTYPES = {"fp32": torch.float32, "fp16": torch.float16}


@dataclass(frozen=True)
class SpeedCheck:
    """The model and the trace of all speed measurements; `encoder` is in float32 on the CPU, `model` is its bundle."""

    encoder: Encoder
    model: Model
    trace: Trace
    settings: Settings
    findings: Findings

    def require(self, name: str, measured: float, bound: float, *, is_aim: bool = False) -> None:
        """Add a number with its lower bound; without a GPU the bound is dropped, because it would mean nothing."""
        if self.settings.tiny:
            self.findings.record(name, measured)
        else:
            self.findings.require(name, measured, "≥", bound, is_aim=is_aim)


def speed(settings: Settings, findings: Findings) -> None:
    """Run all measurements on one trace."""
    encoder = random_model(BERT_BASE, settings)
    model = open_model(write_bundle(encoder, None, "bert-base", settings), settings.provider, settings.fastest, None)
    lengths = LogNormal(12, 2, 64) if settings.tiny else MEDIAN_90
    # The mean length exceeds the median, so this number of sequences is enough.
    sequences = settings.effort.trace_tokens // lengths.median_tokens
    trace = lengths.trace(sequences, encoder.config.vocabulary_size)
    check = SpeedCheck(encoder, model, trace.first(settings.effort.trace_tokens), settings, findings)
    findings.record("sequences", f"{trace.name}: {len(check.trace.sequences):,} of {check.trace.tokens:,} tokens")
    with findings.attempt("throughput and latency"), ExitStack() as stack:
        server = None
        with findings.attempt("server"):
            flags = ["--provider", settings.provider, "--precision", settings.fastest, "--cache-dir", ""]
            server = stack.enter_context(running_server(model.bundle.folder, flags))
        with findings.attempt("throughput"):
            _throughput(check, server)
        if server is not None:
            with findings.attempt("latency"):
                latency(server, model.graph, settings, findings)
    for part in (_batches, _layouts):
        with findings.attempt(part.__name__.strip("_")):
            part(check)


def _throughput(check: SpeedCheck, server: RunningServer | None) -> None:
    """Compare all ways to encode the whole trace, in alternating rounds; `server` may be None."""
    runs = dict(_runs(check, server))
    taken = rounds_of(runs, check.settings, check.findings)
    for name, seconds in taken.items():
        check.findings.record(f"{name}, {check.settings.fastest}: tokens/s", check.trace.tokens / float(seconds))
    if (ours := taken.pop(_IN_PROCESS, None)) is None:
        return
    for name, seconds in taken.items():
        speedup = float(seconds / ours)
        if name == _SERVED:
            check.require("throughput served / in process", float(ours / seconds), 0.85)
        elif name.startswith("PyTorch") and name.endswith(_ARRIVAL):
            check.require(f"throughput in process / {name}", speedup, 2.0)
        elif name == _VARIABLE:
            check.require(f"throughput in process / {name}", speedup, 1.0, is_aim=True)
        else:
            check.findings.record(f"throughput in process / {name}", speedup)


def _runs(check: SpeedCheck, server: RunningServer | None) -> Iterator[tuple[str, Run]]:
    """Yield the ways to encode the whole trace; an error becomes a finding, and its way is left out."""
    findings, settings, sequences = check.findings, check.settings, check.trace.sequences
    planner = Planner(check.model)
    findings.record("token budget, in process", planner.limits.tokens)
    yield _IN_PROCESS, partial(_plan_and_run, check, planner)
    if server is not None:
        with findings.attempt(_SERVED), Client(server.address) as client:
            # The server has measured its own cost model.
            findings.record("token budget, served", client.model().execution.token_budget)
            yield _SERVED, partial(_send, server.address, sequences)
    with findings.attempt("ONNX Runtime, padded"):
        graph = _graph(check, Portable, settings.fastest)
        for order, batches in _orders(check):
            yield f"ONNX Runtime, padded, {order}", partial(_run, graph, batches)
    for name, compiled in (("PyTorch, eager", False), ("PyTorch, torch.compile", True)):
        with findings.attempt(name):
            runner = Runner(_in_pytorch(check), Padded, settings)
            if compiled:
                runner.compile()
            _record_cosine(check, name, runner)
            for order, batches in _orders(check):
                yield f"{name}, padded, {order}", partial(runner.run, batches)
    if reason := varlen_unavailable_reason(settings):
        findings.skip(_VARIABLE, reason)
        return
    with findings.attempt(_VARIABLE):
        runner = Runner(_in_pytorch(check), VariableLength, settings)
        _record_cosine(check, _VARIABLE, runner)
        yield _VARIABLE, partial(runner.run, in_batches(sequences, _FULL_BATCH_TOKENS))


def _plan_and_run(check: SpeedCheck, planner: Planner) -> None:
    """Plan and run batches like the server, with the whole trace in the queue."""
    for batch in planner.batches(check.trace.sequences, len(check.trace.sequences)):
        check.model.graph.run(pack(batch), hidden=False)


def _send(address: str, sequences: Sequence[Ids]) -> None:
    """Send a trace with enough requests in flight that the server always has work for full batches."""
    raise_first_error(closed_loop(address, sequences, requesters=16, sequences_per_request=64))


def _in_pytorch(check: SpeedCheck) -> Encoder:
    return copy.deepcopy(check.encoder).to(check.settings.device, _DTYPES[check.settings.fastest])


def _record_cosine(check: SpeedCheck, name: str, runner: Runner) -> None:
    """Record that a compared encoder gives the same results."""
    batch = check.trace.sequences[:PADDED_SEQUENCES]
    ours = check.model.graph.run(pack(batch), hidden=False).pooled
    assert ours is not None
    theirs = runner.run([batch])
    cosines = (ours * theirs).sum(1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(theirs, axis=1)
    check.findings.record(f"{name}: smallest cosine to Headwaiter", float(cosines.min()))


def _orders(check: SpeedCheck) -> Iterator[tuple[str, Batches]]:
    sequences, size = check.trace.sequences, PADDED_SEQUENCES
    for order, ordered in ((_ARRIVAL, sequences), (_SORTED, sorted(sequences, key=len))):
        yield order, [ordered[start : start + size] for start in range(0, len(ordered), size)]


def _batches(check: SpeedCheck) -> None:
    """Compare batches of several sizes with the device's matrix rate."""
    settings, findings, sequences = check.settings, check.findings, check.trace.sequences
    precision = settings.fastest
    rate = matrix_rate(settings, _DTYPES[precision])
    findings.record(f"matrix products of PyTorch, {precision}: TFLOP/s", rate / 1e12)
    flops = encoder_flops(check.encoder.config, map(len, sequences))
    findings.record("arithmetic per token: MFLOP", flops / check.trace.tokens / 1e6)
    for tokens in settings.effort.batch_tokens:
        run = partial(_run, check.model.graph, in_batches(sequences, tokens))
        seconds = median_seconds(run, settings, settings.effort.rounds)
        label = f"batches of {tokens:,} tokens, {precision}"
        findings.record(f"{label}: tokens/s", check.trace.tokens / seconds)
        share = f"{label}: share of the matrix rate"
        if tokens >= _FULL_BATCH_TOKENS:
            check.require(share, flops / seconds / rate, 0.35)
            check.require(share, flops / seconds / rate, 0.45, is_aim=True)
        else:
            findings.record(share, flops / seconds / rate)


def _layouts(check: SpeedCheck) -> None:
    """Compare attention layouts in batches of one size."""
    settings = check.settings
    tokens = min(_FULL_BATCH_TOKENS, max(settings.effort.batch_tokens))
    batches = in_batches(check.trace.sequences, tokens)
    for precision in settings.precisions:
        for layout in _LAYOUTS[settings.provider]:
            label = f"{layout.__name__}, {precision}, batches of {tokens:,} tokens: tokens/s"
            with check.findings.attempt(label):
                _time_graph(check, label, _graph(check, layout, precision), batches)
    label = f"{settings.fastest} as served, without bound buffers and shape buckets: tokens/s"
    with check.findings.attempt(label):
        path = check.model.bundle.folder / check.model.graph_file
        session = open_session(path, settings.provider, session_options(None))
        _time_graph(check, label, EncoderGraph(session), batches)


def _time_graph(check: SpeedCheck, label: str, graph: EncoderGraph, batches: Batches) -> None:
    seconds = median_seconds(partial(_run, graph, batches), check.settings, check.settings.effort.rounds)
    check.findings.record(label, check.trace.tokens / seconds)


def _graph(check: SpeedCheck, layout: type[GraphLayout], precision: Precision) -> EncoderGraph:
    """Open a graph: the bundle's if the bundle has it, otherwise a graph that is written once."""
    plan = served_plan(check.settings, precision)
    path = check.settings.folder / f"{layout.__name__}.{precision}.onnx"
    if layout is plan.layout:
        path = check.model.bundle.folder / plan.file
    elif not path.exists():
        write(check.encoder, layout, precision, path)
    return EncoderGraph.open(path, check.settings.provider)


def _run(graph: EncoderGraph, batches: Batches) -> None:
    for batch in batches:
        graph.run(pack(batch), hidden=False)
