"""CUDA graphs: how far the numbers of replays are from those of ordinary runs; time, memory, number and kernels."""

import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from bench.findings import Findings
from bench.gpu.decisions import SESSION, compare, decide
from bench.gpu.forms import FORMS
from bench.gpu.memory import random_shapes
from bench.gpu.models import BERT_BASE, MINILM, random_model, served_plan, write
from bench.gpu.settings import FASTEST, Settings
from bench.gpu.timing import median_seconds
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.config.waveform import WaveformConfig
from headwaiter_export.encoder.reference import random_sequences
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_server.models.calibration import capture_cuda_graphs
from headwaiter_server.runtime.cuda_graphs import Upload
from headwaiter_server.runtime.graph import EncoderGraph
from headwaiter_server.runtime.numeric_tolerances import difference, violation
from headwaiter_server.runtime.packing import PackedBatch, pack
from headwaiter_server.runtime.shape_buckets import GRAPH_TOKENS, graph_batches
from headwaiter_server.scheduling.cost import BatchLimits

BERT, TEXTS = "BERT-base's shape", "all-MiniLM-L6-v2's shape"
_DEBERTA = "distance products, as DeBERTa"
_WAVEFORM: Mapping[str, Any] = {
    **dict.fromkeys(("bias", "final_norm", "gates_distances"), True),
    "widths": (16, 16, 16),
    "kernels": (10, 3, 2),
    "strides": (5, 2, 2),
    "norms_channels": False,
    "activation": "gelu",
    "position_kernel": 20,
    "position_groups": 4,
}
_SOUNDS: Mapping[str, Any] = {
    **dict.fromkeys(("distance_keys", "distance_queries"), False),
    "vocabulary_size": 0,
    "feature_width": 30,
    "feature_projection": True,
    "waveform": WaveformConfig(**_WAVEFORM),
}
# Kernels of these forms read parameters from host memory, which a replay copies again.
_PARAMETERS = {
    _DEBERTA: FORMS[_DEBERTA],
    "gated distances of sounds, as WavLM": replace(FORMS[_DEBERTA], **_SOUNDS),
}
# Lengths of the timed batches.
SHORT, SHORTS, TWENTY_ONE = (32,), (32,) * 8, (21,) * 21
_TIMED: Mapping[str, Sequence[Sequence[int]]] = {
    BERT: (SHORT, SHORTS, (64,) * 16, (64,) * 32),
    TEXTS: (SHORT, TWENTY_ONE),
}
# More memory would be missing elsewhere.
_MOST_MIB = 256


def graphs(settings: Settings, findings: Findings) -> None:
    """Check values of forms with parameters first; then time, memory and values of two encoders."""
    wrong = captured = 0
    for name, config in _PARAMETERS.items():
        with findings.attempt(name):
            graph, manifest, config = _open(name, config, settings)
            wrong += _compare(name, graph, manifest, config, settings, findings)
            captured += bool(graph.cuda_graphs)
    choice = "on" if captured == len(_PARAMETERS) and not wrong else "off"
    figures = f"{captured} of {len(_PARAMETERS)} models pass the server's own check, then {wrong} batches do not"
    decide(findings, "CUDA graphs of kernels with parameters in host memory", f"{choice}, {figures}")
    for name, config in ((BERT, BERT_BASE), (TEXTS, MINILM)):
        with findings.attempt(name):
            _measure(name, config, settings, findings)


def _measure(name: str, config: EncoderConfig, settings: Settings, findings: Findings) -> None:
    graph, manifest, config = _open(name, config, settings, captures=False)
    batches = {lengths: pack(random_sequences(config, list(lengths))) for lengths in map(tuple, _TIMED[name])}

    def time(*, replayed: bool) -> dict[tuple[int, ...], float]:
        """Return the milliseconds of the batches; without those that have no CUDA graph, if graphs run."""
        taken_ms = {}
        for lengths, batch in batches.items():
            prepared = graph.prepare(batch)
            if isinstance(prepared.inputs, Upload) == replayed:
                how = "CUDA graphs" if replayed else "ordinary runs"
                label = f"{name}, {len(lengths)} × {lengths[0]} tokens, {FASTEST}: session with {how}, ms"
                run = partial(graph.run, prepared, hidden=False)
                taken_ms[lengths] = median_seconds(label, run, settings, settings.effort.batch_rounds) * 1e3
                if (name, lengths, replayed) == (BERT, SHORT, True):
                    findings.require(SESSION, taken_ms[lengths], "≤", 0.8, is_aim=True)
                else:
                    findings.record(label, taken_ms[lengths])
        return taken_ms

    largest = pack(random_sequences(config, [config.max_tokens] * 64))
    graph.run(largest, hidden=False)  # Allocates memory.
    ordinary_ms = time(replayed=False)
    before_mib = settings.gpu.used_mib()
    seconds = settings.gpu.seconds("captures", partial(_capture, graph, manifest))
    captured, mib = len(graph.cuda_graphs or ()), settings.gpu.used_mib() - before_mib
    findings.record(f"{name}: captures, s", seconds)
    graph_ms = time(replayed=True)
    wrong = _compare(name, graph, manifest, config, settings, findings)
    other, again = (_open(name, config, settings, captures=False)[0] for _ in range(2))
    beside = 0
    with findings.attempt(f"{name}: captures beside other batches"), _runs_meanwhile(other, largest):
        for lengths in graph_batches(GRAPH_TOKENS[0], config.max_tokens):
            beside += again.capture(pack(random_sequences(config, list(lengths))), lambda *_: None) is not None
    findings.require(f"{name}: graphs captured beside other batches", beside, "≥", 1)
    if name != BERT:
        return
    mib_of_all = f"{captured} graphs take {mib:.0f} MiB"
    decide(findings, "number of CUDA graphs", f"{'all' if mib <= _MOST_MIB else 'fewer'}, {mib_of_all}")
    faster = [sum(lengths) for lengths, each_ms in graph_ms.items() if each_ms < ordinary_ms[lengths]]
    times = ", ".join(f"{compare(graph_ms[each], ordinary_ms[each])} ms ({sum(each)} tokens)" for each in graph_ms)
    choice = f"on up to {max(faster)} tokens" if faster and not wrong else "off"
    decide(findings, "CUDA graphs", f"{choice}, {times or 'none was captured'}")
    with findings.attempt(f"{name}: kernels of replays"):
        _compare_kernels(name, graph, batches[SHORT], settings, findings)


def _open(
    name: str, config: EncoderConfig, settings: Settings, *, captures: bool = True
) -> tuple[EncoderGraph, Manifest, EncoderConfig]:
    """Open the graph of an encoder with random weights, and capture CUDA graphs as a server does."""
    path = settings.folder / f"{name}.onnx"
    encoder = random_model(config, settings)
    config = encoder.config
    if not path.exists():
        write(encoder, served_plan(FASTEST).layout, FASTEST, path)
    manifest = Manifest(
        name=name,
        vocabulary_size=config.vocabulary_size,
        feature_width=config.feature_width,
        min_tokens=config.min_tokens,
        max_tokens=config.max_tokens,
        fixed_length=config.fixed_length,
    )
    graph = EncoderGraph.open(path, "cuda")
    if captures:
        _capture(graph, manifest)
    return graph, manifest, config


def _capture(graph: EncoderGraph, manifest: Manifest) -> None:
    bundle = SimpleNamespace(manifest=manifest)
    model: Any = SimpleNamespace(graph=graph, bundle=bundle, precision=served_plan(FASTEST).precision)
    capture_cuda_graphs(model)


def _compare(
    name: str, graph: EncoderGraph, manifest: Manifest, config: EncoderConfig, settings: Settings, findings: Findings
) -> int:
    """Run random batches by their CUDA graphs, and the same inputs without; return how many exceed the tolerance.

    Shapes alternate, so that runs of other shapes may overwrite what a graph reads.
    """
    differences, other_bits, wrong = [], 0, 0
    limits = BatchLimits(GRAPH_TOKENS[-1], sys.maxsize)
    for lengths in random_shapes(manifest, limits, settings.effort.requests):
        prepared = graph.prepare(pack(random_sequences(config, lengths.tolist())))
        if not isinstance(prepared.inputs, Upload):
            continue
        replayed, ordinary = (graph.run(each, hidden=False) for each in (prepared, _without_graph(prepared)))
        measured = difference(replayed, ordinary)
        differences.append(measured)
        other_bits += measured.pooled_max_abs > 0
        wrong += violation(measured, served_plan(FASTEST).precision) is not None
    findings.require(f"{name}: replays", len(differences), "≥", 1)
    findings.require(f"{name}: replays that differ from an ordinary run by more than the tolerance", wrong, "≤", 0)
    if differences:
        findings.record(f"{name}: replays with other bits than an ordinary run", other_bits)
        cosine = min(each.min_cosine for each in differences)
        findings.record(f"{name}: smallest cosine of a replay and an ordinary run", cosine)
        relative = max(each.pooled_max_relative for each in differences)
        findings.record(f"{name}: largest difference of a replay and an ordinary run / largest value", relative)
    return wrong


def _compare_kernels(
    name: str, graph: EncoderGraph, batch: PackedBatch, settings: Settings, findings: Findings
) -> None:
    """Record the kernels that a replay runs more often than an ordinary run of the same inputs, and the reverse."""
    prepared = graph.prepare(batch)
    if not isinstance(prepared.inputs, Upload):
        return
    replay, ordinary = (
        Counter(kernel.name for kernel in settings.gpu.kernels(partial(graph.run, each, hidden=False))[1])
        for each in (prepared, _without_graph(prepared))
    )
    for how, more in (("a replay", replay - ordinary), ("an ordinary run", ordinary - replay)):
        kernels = ", ".join(sorted(" ".join(kernel.split())[:100] for kernel in more))
        findings.record(f"{name}, 1 × {batch.tokens} tokens: kernels that {how} has more of", kernels or "none")


def _without_graph(prepared: PackedBatch) -> PackedBatch:
    """Return a batch of the same inputs that runs ordinarily."""
    assert prepared.inputs is not None
    return replace(prepared, inputs=dict(prepared.inputs))


@contextmanager
def _runs_meanwhile(graph: EncoderGraph, batch: PackedBatch) -> Iterator[None]:
    """Run a batch again and again in another thread, whose first run allocates memory."""
    done = threading.Event()

    def run() -> None:
        while not done.is_set():
            graph.run(batch, hidden=False)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
