"""Times one short sequence: where the time goes, and how much longer the first batches of a session take."""

from functools import partial

import numpy as np

from bench.findings import Findings
from bench.gpu.models import minilm_bundle, served_plan
from bench.gpu.settings import FASTEST, Settings
from bench.gpu.timing import median_seconds
from headwaiter_server.runtime.graph import EncoderGraph, open_session, session_options
from headwaiter_server.runtime.packing import pack

_TOKENS = 32
_WARM_BATCH = 10


def short_batch(settings: Settings, findings: Findings) -> None:
    """Open a session, time its first batches, and divide the time of later batches."""
    label = f"one sequence of {_TOKENS} tokens, {FASTEST}"
    path = minilm_bundle(settings) / served_plan(FASTEST).file
    opened = []
    opening_s = settings.gpu.seconds(
        "opening a session", lambda: opened.append(open_session(path, "cuda", session_options(None)))
    )
    findings.record("opening a session, ms", opening_s * 1e3)
    (session,) = opened
    graph = EncoderGraph(session, gpu=0)
    batch = graph.prepare(pack([np.arange(_TOKENS)]))
    inputs = batch.inputs
    assert inputs is not None
    run = partial(graph.run, batch, hidden=False)
    taken_ms = [settings.gpu.seconds(f"{label}, batch {number + 1}", run) * 1e3 for number in range(_WARM_BATCH)]
    findings.record(f"{label}: first batch, ms", taken_ms[0])
    findings.record(f"{label}: tenth batch, ms", taken_ms[-1])
    rounds = settings.effort.requests
    whole_ms = median_seconds(label, run, settings, rounds) * 1e3
    findings.record(f"{label}: whole batch, ms", whole_ms)
    without_copies = settings.gpu.without_copies(session, inputs, ["pooled"])
    on_device_ms = median_seconds(f"{label}, without copies", without_copies, settings, rounds) * 1e3
    copied_bytes = sum(array.nbytes for array in inputs.values())
    copies = f"copies of {len(inputs)} inputs ({copied_bytes:,} bytes) and 1 output"
    findings.record(f"{label}: {copies}, ms", whole_ms - on_device_ms)
    with findings.attempt(f"{label}: kernels"):
        kernels_ms = settings.gpu.kernels_ms(run)
        findings.record(f"{label}: kernels, ms", kernels_ms)
        findings.record(f"{label}: starting the kernels and waiting for them, ms", on_device_ms - kernels_ms)
