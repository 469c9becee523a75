"""How long one short sequence takes, served and alone, and how much of that is not the device's work."""

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from bench.gpu.findings import Findings
from bench.gpu.setting import Setting
from bench.loads.raw_calls import closed_loop
from headwaiter_server.runtime.graph import EncoderGraph
from headwaiter_server.runtime.packing import pack
from testbed.server_process import RunningServer

TOKENS = 32
_PROFILED_RUNS = 50


def latency(server: RunningServer, graph: EncoderGraph, setting: Setting, findings: Findings) -> None:
    """Send one sequence of 32 tokens again and again, each when the last was answered."""
    ids = np.arange(TOKENS, dtype=np.int64)
    requests = setting.effort.requests
    closed_loop(server.address, [ids] * (requests // 10), 1)
    load = closed_loop(server.address, [ids] * requests, 1)
    served_ms = np.array([request.latency_s for request in load.answered]) * 1e3
    p50_ms, p99_ms = np.quantile(served_ms, (0.5, 0.99))
    at = f"one sequence of {TOKENS} tokens, {setting.fastest}"
    findings.see(f"{at}: served, p50 ms", float(p50_ms))
    findings.see(f"{at}: served, p99 ms", float(p99_ms))

    def run() -> None:
        graph.run(pack([ids]), hidden=False)

    alone_ms = _median_s(run, requests) * 1e3
    findings.see(f"{at}: in process, p50 ms", alone_ms)
    findings.see(f"{at}: share of served p50 spent outside the runtime", float(1 - alone_ms / p50_ms))
    outside = f"{at}: share of served p50 spent outside the card's kernels"
    if setting.provider != "cuda":
        findings.skip(outside, "without a card there are no kernels to time")
        return
    with findings.attempt(outside):
        kernels = kernels_ms(run)
        findings.see(f"{at}: the card's kernels, ms a run", kernels)
        findings.see(outside, float(1 - kernels / p50_ms))


def _median_s(run: Callable[[], None], times: int) -> float:
    taken = []
    for _ in range(times):
        started_s = time.perf_counter()
        run()
        taken.append(time.perf_counter() - started_s)
    return statistics.median(taken)


def kernels_ms(run: Callable[[], None]) -> float:
    """Return the time that the card's kernels take in one run, copies to and from the card left out.

    CUPTI, behind PyTorch's profiler, sees all that this process asks of the card, ONNX Runtime's part too. Kernels
    follow each other on one stream, so their times add up.

    Raises:
        RuntimeError: it saw no kernels.
    """
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(_PROFILED_RUNS):
            run()
    kernels: list[float] = [
        event.time_range.elapsed_us()
        for event in profiler.events() or ()
        if event.device_type.name == "CUDA" and not event.name.startswith(("Memcpy", "Memset"))
    ]
    if not kernels:
        raise RuntimeError("PyTorch's profiler saw no kernels of ONNX Runtime's")
    return sum(kernels) / _PROFILED_RUNS / 1e3
