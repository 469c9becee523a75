"""Latency of one short sequence, served and in process, and the share spent outside the device."""

from collections.abc import Callable

import numpy as np
import torch

from bench.findings import Findings
from bench.gpu.settings import Settings
from bench.gpu.timing import median_seconds
from bench.loads.raw_calls import closed_loop
from headwaiter_server.runtime.graph import EncoderGraph
from headwaiter_server.runtime.packing import pack
from testbed.server_process import RunningServer

TOKENS = 32
_PROFILED_RUNS = 50


def latency(server: RunningServer, graph: EncoderGraph, settings: Settings, findings: Findings) -> None:
    """Send requests of one sequence of 32 tokens, one after another."""
    ids = np.arange(TOKENS, dtype=np.int64)
    requests = settings.effort.requests
    closed_loop(server.address, [ids] * (requests // 10), 1)
    load = closed_loop(server.address, [ids] * requests, 1)
    served_ms = np.array([request.latency_s for request in load.answered]) * 1e3
    p50_ms, p99_ms = np.quantile(served_ms, (0.5, 0.99))
    case = f"one sequence of {TOKENS} tokens, {settings.fastest}"
    findings.record(f"{case}: served, p50 ms", float(p50_ms))
    findings.record(f"{case}: served, p99 ms", float(p99_ms))

    def run() -> None:
        graph.run(pack([ids]), hidden=False)

    alone_ms = median_seconds(run, settings, requests) * 1e3
    findings.record(f"{case}: in process, p50 ms", alone_ms)
    findings.record(f"{case}: share of served p50 spent outside the runtime", float(1 - alone_ms / p50_ms))
    outside = f"{case}: share of served p50 spent outside the GPU's kernels"
    if settings.provider != "cuda":
        findings.skip(outside, "there is no GPU whose kernels could be timed")
        return
    with findings.attempt(outside):
        kernels = kernels_ms(run)
        findings.record(f"{case}: the GPU's kernels, ms per run", kernels)
        findings.record(outside, float(1 - kernels / p50_ms))


def kernels_ms(run: Callable[[], None]) -> float:
    """Return the milliseconds that the GPU's kernels take in one run, without copies to and from the GPU.

    PyTorch's profiler uses CUPTI, which sees all GPU work of this process, including ONNX Runtime's. Kernels run one
    after another on one stream, so their times can be added.

    Raises:
        RuntimeError: the profiler saw no kernels.
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
        raise RuntimeError("PyTorch's profiler saw no kernels of ONNX Runtime: check that CUPTI is installed")
    return sum(kernels) / _PROFILED_RUNS / 1e3
