"""How fast BERT-base's shape is: Headwaiter in process and served, PyTorch, other graphs, and the device's own rate."""

import copy
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from bench.gpu_check.findings import Findings
from bench.gpu_check.latency import latency
from bench.gpu_check.models import BERT_BASE, random_model, write, write_bundle
from bench.gpu_check.pytorch import PADDED_SEQUENCES, Padded, Runner, VariableLength, in_batches, why_no_variable_length
from bench.gpu_check.rates import encoder_flops, matrix_rate
from bench.gpu_check.served import send
from bench.gpu_check.setting import Setting
from bench.gpu_check.timing import median_seconds, ratio, rounds_of
from bench.planner import Planner
from bench.traces import MEDIAN_90, LogNormal, Trace
from examples.serving import running_server
from headwaiter_export.encoder import Encoder
from headwaiter_export.graphs import Written
from headwaiter_export.lowering import FusedCuda, GatheredCuda, PackedCpu, PackedCuda, Portable
from headwaiter_server.runtime.graph import EncoderGraph
from headwaiter_server.runtime.model import Model, open_model
from headwaiter_server.runtime.packing import pack

Ids = NDArray[np.int64]
Run = Callable[[], object]

_OURS, _OURS_SERVED = "Headwaiter, in process", "Headwaiter, served"
_ARRIVAL, _SORTED = (
    f"padded batches of {PADDED_SEQUENCES}, arrival order",
    f"padded batches of {PADDED_SEQUENCES}, sorted",
)
_VARIABLE = "PyTorch, variable-length flash attention"
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


def speed(setting: Setting, findings: Findings) -> None:
    """Time everything on one trace in one run."""
    encoder = random_model(BERT_BASE, setting)
    model = open_model(write_bundle(encoder, None, "bert-base", setting), setting.provider, setting.fastest, None)
    lengths = LogNormal(12, 2, 64) if setting.tiny else MEDIAN_90
    trace = lengths.trace(setting.effort.trace_tokens, encoder.config.vocabulary_size)
    bench = Bench(encoder, model, trace.first(setting.effort.trace_tokens), setting, findings)
    for part in (_compare, _batches, _lowerings):
        with findings.attempt(part.__name__.strip("_")):
            part(bench)
    with findings.attempt("latency"):
        latency(model, setting, findings)


def _compare(bench: Bench) -> None:
    """Compare what answers the whole trace, in rounds of turns."""
    setting, findings, trace = bench.setting, bench.findings, bench.trace
    precision = setting.fastest
    runs: dict[str, Run] = {_OURS: _in_process(bench)}
    runs |= {f"ONNX Runtime, portable graph, {name}": run for name, run in _portable(bench)}
    flags = ["--provider", setting.provider, "--precision", precision, "--cache-dir", ""]
    runs |= _pytorch(bench)
    with running_server(bench.model.bundle.folder, flags) as server:
        taken = rounds_of({**runs, _OURS_SERVED: lambda: send(server.address, trace.sequences)}, setting)
    for name, seconds in taken.items():
        rate = trace.tokens / statistics.median(seconds)
        findings.see(f"{name}, {precision}: tokens/s", rate)
    ours = taken[_OURS]
    for name, seconds in taken.items():
        by = f"in process by {name}"
        if name.startswith("PyTorch, eager, ") and name.endswith(_ARRIVAL):
            findings.hold(by, ratio(ours, seconds), "≥", 2.0)
        elif name == _VARIABLE:
            findings.hold(by, ratio(ours, seconds), "≥", 1.0, aim=True)
        elif name == _OURS_SERVED:
            findings.hold("served by in process", ratio(seconds, ours), "≥", 0.85)
        elif name != _OURS:
            findings.see(by, ratio(ours, seconds))


def _in_process(bench: Bench) -> Run:
    """Plan and run as the server does, with the whole trace waiting."""
    planner, sequences = Planner(bench.model), bench.trace.sequences
    bench.findings.see("token budget that the server chooses", planner.limits.tokens)

    def run() -> None:
        for batch in planner.batches(sequences, len(sequences)):
            bench.model.graph.run(pack(batch), hidden=False)

    return run


def _orders(sequences: Sequence[Ids]) -> Iterator[tuple[str, list[Sequence[Ids]]]]:
    for name, ordered in ((_ARRIVAL, sequences), (_SORTED, sorted(sequences, key=len))):
        yield name, in_batches(ordered, PADDED_SEQUENCES)


def _portable(bench: Bench) -> Iterator[tuple[str, Run]]:
    graph = _graph(bench, Portable, bench.setting.fastest)
    for name, batches in _orders(bench.trace.sequences):
        yield name, lambda batches=batches: [graph.run(pack(batch), hidden=False) for batch in batches]


def _pytorch(bench: Bench) -> dict[str, Run]:
    """Return PyTorch's ways; one that cannot be compared with is a line in the findings."""
    setting, findings = bench.setting, bench.findings
    encoder = copy.deepcopy(bench.encoder).to(setting.device, _DTYPES[setting.fastest])
    eager, runs = Runner(encoder, Padded, setting), {}
    ways = [("PyTorch, eager", eager)]
    with findings.attempt("PyTorch, torch.compile"):
        compiled = eager.compiled()
        compiled.run(in_batches(bench.trace.sequences, PADDED_SEQUENCES)[:2])
        ways.append(("PyTorch, torch.compile", compiled))
    for way, runner in ways:
        for name, batches in _orders(bench.trace.sequences):
            runs[f"{way}, {name}"] = lambda runner=runner, batches=batches: runner.run(batches)
    if why := why_no_variable_length(setting):
        findings.skip(_VARIABLE, why)
    else:
        with findings.attempt(_VARIABLE):
            variable = Runner(encoder, VariableLength, setting)
            batches = _of_tokens(bench.trace.sequences, _FULL_BATCH_TOKENS)
            variable.run(batches[:1])
            runs[_VARIABLE] = lambda: variable.run(batches)
    return runs


def _batches(bench: Bench) -> None:
    """Compare batches of several sizes, packed and run one after the other, to the device's own rate."""
    setting, findings, graph = bench.setting, bench.findings, bench.model.graph
    precision, config = setting.fastest, bench.encoder.config
    most = matrix_rate(setting, _DTYPES[precision])
    findings.see(f"matrix products of PyTorch, {precision}: TFLOP/s", most / 1e12)
    lengths = [len(ids) for ids in bench.trace.sequences]
    flops = encoder_flops(config, lengths) / sum(lengths)
    findings.see("arithmetic of a token: MFLOP", flops / 1e6)
    for tokens in setting.effort.batch_tokens:
        batches = _of_tokens(bench.trace.sequences, tokens)
        seconds = median_seconds(lambda batches=batches: _run(graph, batches), setting, setting.effort.rounds)
        rate = bench.trace.tokens / seconds
        findings.see(f"batches of {tokens:,} tokens, {precision}: tokens/s", rate)
        share = f"batches of {tokens:,} tokens, {precision}: share of the matrix rate"
        if tokens >= _FULL_BATCH_TOKENS:
            findings.hold(share, rate * flops / most, "≥", 0.35)
            findings.hold(share, rate * flops / most, "≥", 0.45, aim=True)
        else:
            findings.see(share, rate * flops / most)


def _lowerings(bench: Bench) -> None:
    """Compare the ways to write attention, in batches of one size."""
    setting, findings = bench.setting, bench.findings
    tokens = min(_FULL_BATCH_TOKENS, max(setting.effort.batch_tokens))
    batches = _of_tokens(bench.trace.sequences, tokens)
    for precision in setting.precisions:
        for lowering in _LOWERINGS[setting.provider]:
            what = f"{lowering.__name__}, {precision}, batches of {tokens:,} tokens: tokens/s"
            with findings.attempt(what):
                graph = _graph(bench, lowering, precision)
                seconds = median_seconds(lambda graph=graph: _run(graph, batches), setting, setting.effort.rounds)
                findings.see(what, bench.trace.tokens / seconds)


def _graph(bench: Bench, lowering: type[Written], precision: str) -> EncoderGraph:
    path = bench.setting.folder / f"{lowering.__name__}.{precision}.onnx"
    if not path.exists():
        write(bench.encoder, lowering, precision, path)
    return EncoderGraph.open(path, bench.setting.provider)


def _run(graph: EncoderGraph, batches: Sequence[Sequence[Ids]]) -> None:
    for batch in batches:
        graph.run(pack(batch), hidden=False)


def _of_tokens(sequences: Sequence[Ids], tokens: int) -> list[Sequence[Ids]]:
    """Cut a trace, in the order of arrival, into batches of at most so many tokens."""
    batches: list[list[Ids]] = [[]]
    held = 0
    for ids in sequences:
        if held + len(ids) > tokens:
            batches.append([])
            held = 0
        batches[-1].append(ids)
        held += len(ids)
    return batches
