"""Compares the speed of a BERT-base encoder in Headwaiter with PyTorch, other graphs, and the matrix rate."""

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from bench.findings import Findings
from bench.gpu.correctness import check_answers
from bench.gpu.models import BERT_BASE, random_model, served_plan, write, write_bundle
from bench.gpu.pytorch import PADDED_SEQUENCES, Padded, Runner, VariableLength
from bench.gpu.settings import FASTEST, PRECISIONS, Precision, Settings
from bench.gpu.timing import encoder_flops, matrix_rate, median_seconds, rounds_of
from bench.loads.raw_calls import closed_loop, raise_first_error
from bench.loads.traces import Ids, Trace, in_batches, in_groups
from bench.studies.in_process import Planner, run_batches
from headwaiter_client import Client
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_export.graphs.graph_layout import GraphLayout
from headwaiter_export.graphs.packed_cuda import PackedCuda
from headwaiter_export.graphs.portable import Portable
from headwaiter_server.runtime.graph import EncoderGraph
from headwaiter_server.runtime.model import Model, open_model
from headwaiter_server.runtime.packing import pack
from testbed.server_process import RunningServer, running_server

Batches = list[Sequence[Ids]]
Run = Callable[[], object]

_IN_PROCESS, _SERVED = "Headwaiter, in process", "Headwaiter, served"
_VARIABLE = "PyTorch, variable-length flash attention"
_ARRIVAL, _SORTED = "in arrival order", "sorted by length"
_SHORT_TOKENS = 32
_DTYPES = {"fp32": torch.float32, "fp16": torch.float16}


@dataclass(frozen=True)
class SpeedCheck:
    """The model and the trace of all measurements; `model` is the bundle of `encoder`, which is float32 on the CPU."""

    encoder: Encoder
    model: Model
    trace: Trace
    settings: Settings
    findings: Findings


def speed(settings: Settings, findings: Findings) -> None:
    """Run all measurements on one trace."""
    encoder = random_model(BERT_BASE, settings)
    model = open_model(write_bundle(encoder, None, "bert-base", settings), "cuda", FASTEST, None)
    lengths = settings.effort.lengths
    # The mean length exceeds the median, so these sequences have at least `trace_tokens` tokens in total.
    sequences = settings.effort.trace_tokens // lengths.median_tokens
    trace = lengths.trace(sequences, encoder.config.vocabulary_size)
    check = SpeedCheck(encoder, model, trace.first(settings.effort.trace_tokens), settings, findings)
    findings.record("sequences", f"{trace.name}: {len(check.trace.sequences):,} of {check.trace.tokens:,} tokens")
    with findings.attempt("throughput and latency"), ExitStack() as stack:
        server = None
        with findings.attempt("server"):
            flags = ["--provider", "cuda", "--precision", FASTEST, "--front-ends", "auto"]
            server = stack.enter_context(running_server(model.bundle.folder, flags, program=settings.gpu.server))
        with findings.attempt("throughput"):
            _throughput(check, server)
        if server is not None:
            with findings.attempt("latency"):
                _latency(check, server)
    for part in (_batches, _layouts):
        with findings.attempt(part.__name__.strip("_")):
            part(check)


def _throughput(check: SpeedCheck, server: RunningServer | None) -> None:
    """Compare all ways to encode the whole trace, in alternating rounds; without a `server`, only in process."""
    runs = dict(_runs(check, server))
    taken = rounds_of(runs, check.settings, check.findings)
    for name, seconds in taken.items():
        check.findings.record(f"{name}, {FASTEST}: tokens/s", check.trace.tokens / float(seconds))
    if (ours := taken.pop(_IN_PROCESS, None)) is None:
        return
    for name, seconds in taken.items():
        speedup = float(seconds / ours)
        if name == _SERVED:
            check.findings.require("throughput served / in process", float(ours / seconds), "≥", 0.85)
        elif name.startswith("PyTorch") and name.endswith(_ARRIVAL):
            check.findings.require(f"throughput in process / {name}", speedup, "≥", 2.0)
        elif name == _VARIABLE:
            check.findings.require(f"throughput in process / {name}", speedup, "≥", 1.0, is_aim=True)
        else:
            check.findings.record(f"throughput in process / {name}", speedup)


def _runs(check: SpeedCheck, server: RunningServer | None) -> Iterator[tuple[str, Run]]:
    """Yield the ways to encode the whole trace; a way that raises an error becomes a finding instead."""
    findings, sequences = check.findings, check.trace.sequences
    planner = Planner(check.model)
    findings.record("token budget, in process", planner.limits.tokens)
    # Plan and run batches like the server, with the whole trace in the queue.
    yield _IN_PROCESS, lambda: run_batches(check.model.graph, planner.batches(sequences, len(sequences)))
    if server is not None:
        with findings.attempt(_SERVED), Client(server.address) as client:
            # The server measures its own costs, so its token budget may differ from that of the planner above.
            findings.record("token budget, served", client.model().execution.token_budget)
            yield _SERVED, partial(_send, server.address, sequences)
    with findings.attempt("ONNX Runtime, padded"):
        graph = _graph(check, Portable, FASTEST)
        for order, batches in _orders(check):
            yield f"ONNX Runtime, padded, {order}", partial(run_batches, graph, batches)
    for name, compiled in (("PyTorch, eager", False), ("PyTorch, torch.compile", True)):
        with findings.attempt(name):
            runner = _runner(check, name, Padded, compiled=compiled)
            for order, batches in _orders(check):
                yield f"{name}, padded, {order}", partial(runner.run, batches)
    with findings.attempt(_VARIABLE):
        runner = _runner(check, _VARIABLE, VariableLength)
        yield _VARIABLE, partial(runner.run, in_batches(sequences, check.settings.effort.full_batch_tokens))


def _send(address: str, sequences: Sequence[Ids]) -> None:
    """Send a trace; enough requests are in flight to keep the server's batches full."""
    # Connections for all front ends, of which there are at most eight.
    raise_first_error(closed_loop(address, sequences, requesters=16, sequences_per_request=64, connections=16))


def _latency(check: SpeedCheck, server: RunningServer) -> None:
    """Send requests of one sequence of 32 tokens, one after another."""
    settings, findings = check.settings, check.findings
    ids = np.arange(_SHORT_TOKENS, dtype=np.int64)
    requests = settings.effort.requests
    closed_loop(server.address, [ids] * (requests // 10), 1)
    load = closed_loop(server.address, [ids] * requests, 1)
    served_ms = np.array([request.latency_s for request in load.answered]) * 1e3
    p50_ms, p99_ms = np.quantile(served_ms, (0.5, 0.99))
    case = f"one sequence of {_SHORT_TOKENS} tokens, {FASTEST}"
    findings.record(f"{case}: served, p50 ms", float(p50_ms))
    findings.record(f"{case}: served, p99 ms", float(p99_ms))

    def run() -> None:
        check.model.graph.run(pack([ids]), hidden=False)

    alone_ms = median_seconds(case, run, settings, requests) * 1e3
    findings.record(f"{case}: in process, p50 ms", alone_ms)
    findings.record(f"{case}: share of served p50 spent outside the runtime", float(1 - alone_ms / p50_ms))
    outside = f"{case}: share of served p50 spent outside the GPU's kernels"
    with findings.attempt(outside):
        kernels = settings.gpu.kernels_ms(run)
        findings.record(f"{case}: the GPU's kernels, ms per run", kernels)
        findings.record(outside, float(1 - kernels / p50_ms))


def _runner(check: SpeedCheck, name: str, layout: type[Padded | VariableLength], *, compiled: bool = False) -> Runner:
    """Return a runner of the encoder in PyTorch, and record its smallest cosine to Headwaiter's vectors."""
    encoder = copy.deepcopy(check.encoder).to(check.settings.gpu.device, _DTYPES[FASTEST])
    runner = Runner(encoder, layout, check.settings)
    if compiled:
        runner.compile()
    batch = check.trace.sequences[:PADDED_SEQUENCES]
    ours, theirs = check.model.graph.run(pack(batch), hidden=False).pooled, runner.run([batch])
    assert ours is not None
    cosines = (ours * theirs).sum(1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(theirs, axis=1)
    check.findings.record(f"{name}: smallest cosine to Headwaiter", float(cosines.min()))
    return runner


def _orders(check: SpeedCheck) -> Iterator[tuple[str, Batches]]:
    for order, sequences in ((_ARRIVAL, check.trace.sequences), (_SORTED, sorted(check.trace.sequences, key=len))):
        yield order, in_groups(sequences, PADDED_SEQUENCES)


def _batches(check: SpeedCheck) -> None:
    """Compare batches of several sizes with the device's matrix rate."""
    settings, findings, sequences = check.settings, check.findings, check.trace.sequences
    rate = matrix_rate(settings, _DTYPES[FASTEST])
    findings.record(f"matrix products of PyTorch, {FASTEST}: TFLOP/s", rate / 1e12)
    flops = encoder_flops(check.encoder.config, map(len, sequences))
    findings.record("arithmetic per token: MFLOP", flops / check.trace.tokens / 1e6)
    for tokens in settings.effort.batch_tokens:
        label = f"batches of {tokens:,} tokens, {FASTEST}"
        with findings.attempt(label):
            run = partial(run_batches, check.model.graph, in_batches(sequences, tokens))
            seconds = median_seconds(label, run, settings, settings.effort.rounds)
            findings.record(f"{label}: tokens/s", check.trace.tokens / seconds)
            share = f"{label}: share of the matrix rate"
            if tokens >= settings.effort.full_batch_tokens:
                findings.require(share, flops / seconds / rate, "≥", 0.35)
                findings.require(share, flops / seconds / rate, "≥", 0.45, is_aim=True)
            else:
                findings.record(share, flops / seconds / rate)


def _layouts(check: SpeedCheck) -> None:
    """Compare attention layouts in batches of one size; a layout with wrong answers is not timed."""
    effort = check.settings.effort
    tokens = min(effort.full_batch_tokens, max(effort.batch_tokens))
    layouts: tuple[type[GraphLayout], ...] = PackedCuda, Portable
    for precision, layout in itertools.product(PRECISIONS, layouts):
        label = f"{layout.__name__}, {precision}"
        with check.findings.attempt(label):
            graph = _graph(check, layout, precision)
            check_answers(graph, check.encoder, check.trace.sequences[:PADDED_SEQUENCES], precision)
            run = partial(run_batches, graph, in_batches(check.trace.sequences, tokens))
            rate = check.trace.tokens / median_seconds(label, run, check.settings, effort.rounds)
            check.findings.record(f"{label}, batches of {tokens:,} tokens: tokens/s", rate)


def _graph(check: SpeedCheck, layout: type[GraphLayout], precision: Precision) -> EncoderGraph:
    """Open the bundle's graph if it has this layout; otherwise write a graph with this layout once, and open it."""
    plan = served_plan(precision)
    path = check.settings.folder / f"{layout.__name__}.{precision}.onnx"
    if layout is plan.layout:
        path = check.model.bundle.folder / plan.file
    elif not path.exists():
        write(check.encoder, layout, precision, path)
    return EncoderGraph.open(path, "cuda")
