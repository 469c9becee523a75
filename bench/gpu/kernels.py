"""The GPU's kernels of a batch by their names, and the gaps between them."""

import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numpy as np

from bench.findings import Findings
from bench.gpu.decisions import decide
from bench.gpu.models import bert_bundle, bert_trace, minilm_bundle, served_plan
from bench.gpu.settings import FASTEST, Settings
from bench.gpu.timing import median_seconds
from headwaiter_server.runtime.graph import EncoderGraph, open_session, session_options
from headwaiter_server.runtime.packing import pack

FULL, SHORT, TEXTS = "a full batch", "1 × 32 tokens", "21 texts"
ATTENTION, PRODUCTS, OTHERS, GAPS = KINDS = "attention", "matrix products", "other kernels", "gaps"
_KINDS = {
    ATTENTION: re.compile("fmha|flash|attention", re.IGNORECASE),
    PRODUCTS: re.compile("gemm|nvjet|xmma|cutlass|product", re.IGNORECASE),
}
_NAMED = 8


def kernels(settings: Settings, findings: Findings) -> None:
    """Profile a full batch and one short sequence of BERT-base's shape, and 21 texts of all-MiniLM-L6-v2."""
    _, trace = bert_trace(settings)
    bert = bert_bundle(settings) / served_plan(FASTEST).file
    texts = minilm_bundle(settings) / served_plan(FASTEST).file
    full = trace.first(settings.effort.full_batch_tokens).sequences
    cases = {FULL: (bert, full), SHORT: (bert, [np.arange(32)]), TEXTS: (texts, [np.arange(21)] * 21)}
    for case, (path, sequences) in cases.items():
        with findings.attempt(case):
            session = open_session(path, "cuda", session_options(None))
            graph = EncoderGraph(session, gpu=0)
            batch = graph.prepare(pack(sequences))
            run = partial(graph.run, batch, hidden=False)
            rounds = settings.effort.batch_rounds
            whole_ms = median_seconds(f"{case}, whole", run, settings, rounds) * 1e3
            findings.record(f"{case}: whole batch, ms", whole_ms)
            assert batch.inputs is not None
            on_device = settings.gpu.without_copies(session, batch.inputs, ["pooled"])
            on_device_ms = median_seconds(f"{case}, without copies", on_device, settings, rounds) * 1e3
            copied = sum(array.nbytes for array in batch.inputs.values())
            findings.record(f"{case}: copies of {len(batch.inputs)} inputs and 1 output, ms", whole_ms - on_device_ms)
            findings.record(f"{case}: bytes of its inputs", copied)
            _profile(case, run, settings, findings)


def _profile(case: str, run: Callable[[], object], settings: Settings, findings: Findings) -> None:
    runs, ran = settings.gpu.kernels(run)
    count = Counter(each.name for each in ran)
    time_us, kinds = dict.fromkeys(count, 0.0), dict.fromkeys(KINDS, 0.0)
    for each in ran:
        kind = next((kind for kind, names in _KINDS.items() if names.search(each.name)), OTHERS)
        for taken_us, key in ((time_us, each.name), (kinds, kind)):
            taken_us[key] += each.ended_us - each.started_us
    # The longest pauses are those between two runs.
    pauses = sorted((max(0.0, after.started_us - before.ended_us) for before, after in pairwise(ran)), reverse=True)
    kinds[GAPS] = sum(pauses[runs - 1 :])
    whole_us = sum(kinds.values())
    findings.record(f"{case}: kernels", len(ran) / runs)
    findings.record(f"{case}: kernels, ms", (whole_us - kinds[GAPS]) / runs / 1e3)
    findings.record(f"{case}: gaps between kernels, ms", kinds[GAPS] / runs / 1e3)
    shares = ", ".join(f"{kind} {us / whole_us:.0%}" for kind, us in sorted(kinds.items(), key=lambda item: -item[1]))
    findings.record(f"{case}: shares", shares)
    if case == FULL:
        decide(findings, "next kernels to improve", shares)
    for name, us in sorted(time_us.items(), key=lambda item: -item[1])[:_NAMED]:
        times = f"{count[name] / runs:.0f} × {us / count[name]:.1f} µs"
        findings.record(f"{case}: {' '.join(name.split())[:100]}", times)
