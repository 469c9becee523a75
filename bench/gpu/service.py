"""Check a served model: its execution provider, its self-check and its optimised graphs."""

from collections import Counter
from pathlib import Path

import numpy as np

from bench.findings import Findings
from bench.gpu.models import minilm_bundle, served_plan
from bench.gpu.optimized_graph import optimized_operators
from bench.gpu.settings import PRECISIONS, Settings
from examples.demo import REQUIRED_SHARE, SENTENCES, print_neighbours, print_stages, read_sentences
from headwaiter_client import Client
from headwaiter_server.runtime.bundle import Bundle
from testbed.server_process import running_server

_MEMCPY = ("MemcpyToHost", "MemcpyFromHost")


def service(settings: Settings, findings: Findings) -> None:
    """In every precision, serve the demo's sentences and check the optimised graph."""
    folder = minilm_bundle(settings)
    layers = Bundle.open(folder).manifest.layers
    for precision in PRECISIONS:
        with findings.attempt(f"served, {precision}"):
            _serve(folder, precision, settings, findings)
        with findings.attempt(f"optimised graph, {precision}"):
            operators = optimized_operators(folder / served_plan(precision).file, "cuda")
            _check_operators(f"optimised graph, {precision}", operators, layers, findings)


def _serve(folder: Path, precision: str, settings: Settings, findings: Findings) -> None:
    flags = ["--provider", "cuda", "--precision", precision]
    with running_server(folder, flags, program=settings.gpu.server) as server, Client(server.address) as client:
        model = client.model()
        client.encode_tokens([np.arange(8)])  # Connects.
        if settings.checkpoint is None:
            encoding = client.encode_tokens([np.arange(n) for n in range(4, 60)])
            findings.skip(f"served, {precision}: neighbours of the same group", "the checkpoint is missing")
        else:
            groups, sentences = read_sentences(SENTENCES)
            encoding = client.encode(sentences)
            share = print_neighbours(groups, sentences, encoding)
            findings.require(f"served, {precision}: neighbours of the same group", share, "≥", REQUIRED_SHARE)
    label = f"served, {precision}"
    findings.record(f"{label}: provider", model.execution.provider)
    check = model.execution.self_check
    if precision == "fp32":
        difference = min(check.pooled_max_abs, check.pooled_max_relative)
        findings.require(f"{label}: golden inputs, pooled", difference, "≤", 1e-5)
    least = 0.99999 if precision == "fp32" else 0.9999
    findings.require(f"{label}: golden inputs, smallest cosine", check.min_cosine, "≥", least)
    print_stages(encoding)
    timings = encoding.timings
    findings.record(f"{label}: {len(encoding.lengths)} sequences, ms", timings.round_trip_s * 1e3)
    findings.record(f"{label}: share of computing", timings.compute_s / timings.round_trip_s)


def _check_operators(label: str, operators: Counter[str], layers: int, findings: Findings) -> None:
    findings.record(label, ", ".join(f"{count} {name}" for name, count in operators.most_common()))
    findings.require(f"{label}: copies between GPU and host", sum(operators[name] for name in _MEMCPY), "≤", 0)
    for name, per_layer in (("SkipLayerNormalization", 2), ("BiasGelu", 1)):
        findings.require(f"{label}: {name}", operators[name], "≥", per_layer * layers)
