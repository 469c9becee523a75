"""What the processes of a server hold: memory, files, threads, tasks, and the requests that it counts as unfinished."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from testbed.server_process import RunningServer
from tests.support.server_processes import memory_bytes, processes

_MIB = 1 << 20
_GAUGES = {
    "headwaiter_inflight_requests": "unfinished requests",
    "headwaiter_queue_sequences": "queued sequences",
    "headwaiter_queue_tokens": "queued tokens",
    "soak_asyncio_tasks": "asyncio tasks",
}
# gRPC and Python keep idle threads in pools, which grow and shrink by themselves. A thread or a connection that ends
# needs a moment to disappear.
_SLACK = {"threads": 12, "open files": 3, "asyncio tasks": 3}
_SETTLE_S = 30.0
_SAMPLE_INTERVAL_S = 0.25


def holdings(server: RunningServer) -> dict[str, int]:
    """Return the number of things that a server holds, by name."""
    held = {
        "threads": sum(process.num_threads() for process in processes(server)),
        "open files": sum(process.num_fds() for process in processes(server)),
    }
    for name, value in metrics(server).items():
        if name in _GAUGES:
            held[_GAUGES[name]] = int(value)
    return held


def metrics(server: RunningServer) -> dict[str, float]:
    """Return the sum of the samples of each metric; samples of soak_faults are kept apart, by fault."""
    sums: dict[str, float] = {}
    with urlopen(server.metrics_url, timeout=30) as page:
        for family in text_string_to_metric_families(page.read().decode()):
            for sample in family.samples:
                name = sample.labels.get("fault", sample.name)
                sums[name] = sums.get(name, 0.0) + sample.value
    return sums


def leaks(server: RunningServer, before: dict[str, int], settle_s: float = _SETTLE_S) -> list[str]:
    """Return what a server holds more of than before; wait some seconds until everything has settled."""
    end_s = time.monotonic() + settle_s
    while True:
        now = holdings(server)
        grown = [
            f"{name}: {before[name]} before, {held} after"
            for name, held in now.items()
            if held > before[name] + _SLACK.get(name, 0)
        ]
        if not grown or time.monotonic() > end_s:
            return grown
        time.sleep(_SAMPLE_INTERVAL_S)


def memory_mib(server: RunningServer) -> float:
    """Return the resident memory of a server."""
    return memory_bytes(server) / _MIB


@contextmanager
def sampled_memory(server: RunningServer) -> Iterator[list[float]]:
    """Yield a list to which a thread adds the memory of a server, in MiB, until the block ends."""
    samples_mib, ended = [memory_mib(server)], threading.Event()

    def sample() -> None:
        while not ended.wait(_SAMPLE_INTERVAL_S) and server.process.poll() is None:
            samples_mib.append(memory_mib(server))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples_mib
    finally:
        ended.set()
        thread.join()
