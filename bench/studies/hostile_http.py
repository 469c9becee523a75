"""The latency of gRPC callers beside hostile HTTP callers."""

import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from bench.loads import raw_calls
from bench.loads.hostile_http import KINDS
from bench.measure import NULL, warn_if_late
from bench.processes import LOAD_CORE, cpu_s, pin
from bench.rounds import Rounds
from bench.run import Run
from testbed.server_process import RunningServer

_CALLED = replace(NULL, name="null model, HTTP API", flags=("--http-api", "on"))
_OTHER = replace(_CALLED, name="another server")
_NOTHING = "nothing"
_SEQUENCE = np.arange(1000, 1020)
_RATE_PER_S, _WINDOW_S = 100.0, 2.0
_TURNS_PER_ROUND = 2
# A server is calm if it takes at most this share of a core for this time.
_CALM_SHARE, _CALM_S = 0.1, 0.2


@dataclass(frozen=True)
class Window:
    """Latencies of the gRPC callers in seconds, and the requests per second of the hostile callers, per window."""

    p50_s: Rounds = field(default_factory=Rounds)
    p99_s: Rounds = field(default_factory=Rounds)
    hostile_per_s: Rounds = field(default_factory=Rounds)

    def __truediv__(self, other: "Window") -> "Window":
        """Return the ratios of the latencies."""
        return Window(self.p50_s / other.p50_s, self.p99_s / other.p99_s)


@dataclass(frozen=True)
class HostileCallers:
    """Windows with no hostile callers, with callers of the same server, and with callers of another server."""

    kind: str
    alone: Window = field(default_factory=Window)
    same: Window = field(default_factory=Window)
    other: Window = field(default_factory=Window)

    @property
    def same_ratios(self) -> Window:
        """With hostile callers of the same server / without hostile callers."""
        return self.same / self.alone

    @property
    def other_ratios(self) -> Window:
        """With hostile callers of another server / without hostile callers."""
        return self.other / self.alone


def hostile_http(run: Run) -> list[HostileCallers]:
    """Measure the gRPC callers of a null model in windows with and without hostile HTTP callers, in turn."""
    pin(LOAD_CORE)
    called, other = run.fleet[_CALLED], run.fleet[_OTHER]
    rows = [HostileCallers(kind) for kind in (_NOTHING, *KINDS)]
    _send(called, 0, Window())
    for turn in range(_TURNS_PER_ROUND * run.sizes.rounds):
        for row in rows:
            # Alternate the order, because a window may disturb the next one.
            for target, window in [(None, row.alone), (called, row.same), (other, row.other)][:: (-1) ** turn]:
                _wait_until_calm([called, other])
                with _hostile_callers(None if row.kind == _NOTHING else target, row.kind, window.hostile_per_s):
                    _send(called, turn, window)
    return rows


def _send(server: RunningServer, seed: int, window: Window) -> None:
    load = raw_calls.open_loop(server.address, [_SEQUENCE], _RATE_PER_S, _WINDOW_S, None, seed)
    raw_calls.raise_first_error(load)
    warn_if_late(load)
    latencies_s = [outcome.latency_s for outcome in load.outcomes]
    window.p50_s.append(statistics.median(latencies_s))
    window.p99_s.append(float(np.quantile(latencies_s, 0.99)))


def _wait_until_calm(servers: Sequence[RunningServer]) -> None:
    busy = True
    while busy:
        before_s = sum(cpu_s(server.process.pid) for server in servers)
        time.sleep(_CALM_S)
        busy = sum(cpu_s(server.process.pid) for server in servers) - before_s > _CALM_SHARE * _CALM_S


@contextmanager
def _hostile_callers(server: RunningServer | None, kind: str, rates_per_s: Rounds) -> Iterator[None]:
    """Run hostile callers beside the block, and add their requests per second; raise RuntimeError if they failed."""
    if server is None:
        yield
        rates_per_s.append(0.0)
        return
    program = [sys.executable, "-m", "bench.loads.hostile_http", server.metrics_url, kind]
    with subprocess.Popen(program, stdout=subprocess.PIPE) as callers:
        try:
            assert callers.stdout
            callers.stdout.readline()
            started_s = time.perf_counter()
            yield
            callers.send_signal(signal.SIGTERM)
            seconds = time.perf_counter() - started_s
            answered, _ = callers.communicate()
        finally:
            callers.kill()
    if callers.returncode:
        raise RuntimeError(f"the hostile callers failed: {kind}")
    rates_per_s.append(int(answered) / seconds)
