"""Whether a server runs on the provider, says so, checks itself, and whether its graphs are what they should be."""

from collections import Counter
from pathlib import Path

import numpy as np

from bench.gpu.findings import Findings
from bench.gpu.models import MINILM, minilm_bundle, served_plan
from bench.gpu.setting import Setting
from examples.demo import REQUIRED_SHARE, SENTENCES, print_neighbours, print_stages, read_sentences
from headwaiter_client import Client, Encoding
from headwaiter_export.optimized_graph import optimized_operators
from headwaiter_proto.encoder_pb2 import Execution
from testbed.server_process import running_server

_MEMCPY = ("MemcpyToHost", "MemcpyFromHost")


def service(setting: Setting, findings: Findings) -> None:
    """Serve at every precision, encode what the demo encodes, and look into the graphs."""
    folder = minilm_bundle(setting)
    for precision in setting.precisions:
        with findings.attempt(f"served, {precision}"):
            _serve(folder, precision, setting, findings)
        with findings.attempt(f"optimised graph, {precision}"):
            graph = folder / served_plan(setting, precision).file
            _look_into(f"optimised graph, {precision}", optimized_operators(graph, setting.provider), setting, findings)


def _serve(folder: Path, precision: str, setting: Setting, findings: Findings) -> None:
    flags = ["--provider", setting.provider, "--precision", precision, "--cache-dir", ""]
    with running_server(folder, flags) as server, Client(server.address) as client:
        model = client.model()
        client.encode_tokens([np.arange(8)])  # connects
        if setting.checkpoint is None:
            encoding = client.encode_tokens([np.arange(n) for n in range(4, 60)])
            findings.skip(
                f"served, {precision}: neighbours of the same group", "there is no checkpoint with a tokenizer"
            )
        else:
            groups, sentences = read_sentences(SENTENCES)
            encoding = client.encode(sentences)
            share = print_neighbours(groups, sentences, encoding)
            findings.hold(f"served, {precision}: neighbours of the same group", share, "≥", REQUIRED_SHARE)
    _look_at(f"served, {precision}", precision, model.execution, findings)
    _stages(f"served, {precision}", encoding, findings)


def _look_at(what: str, precision: str, execution: Execution, findings: Findings) -> None:
    findings.see(f"{what}: provider", execution.provider)
    check = execution.self_check
    if precision == "fp32":
        findings.hold(f"{what}: golden inputs, pooled", min(check.pooled_max_abs, check.pooled_max_relative), "≤", 1e-5)
    else:
        findings.hold(f"{what}: golden inputs, smallest cosine", check.min_cosine, "≥", 0.9999)


def _stages(what: str, encoding: Encoding, findings: Findings) -> None:
    """Print the demo's table of stages, and keep the share that was the device's."""
    print_stages(encoding)
    timings = encoding.timings
    share = timings.compute_s / timings.round_trip_s
    findings.see(f"{what}: {len(encoding.lengths)} sequences, ms", timings.round_trip_s * 1e3)
    findings.see(f"{what}: share of it that is computing", share)


def _look_into(what: str, operators: Counter[str], setting: Setting, findings: Findings) -> None:
    findings.see(what, ", ".join(f"{count} {name}" for name, count in operators.most_common()))
    if setting.provider != "cuda":
        findings.skip(f"{what}: operators of CUDA's", "the graph of the CPU has others")
        return
    findings.hold(f"{what}: copies between card and host", sum(operators[name] for name in _MEMCPY), "≤", 0)
    for name, a_layer in (("SkipLayerNormalization", 2), ("BiasGelu", 1)):
        findings.hold(f"{what}: {name}", operators[name], "≥", a_layer * MINILM.layers)
