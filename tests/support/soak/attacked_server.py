"""Measure an honest caller, memory and readiness while a program attacks the server."""

import sys
import threading
import time
import urllib.request
from collections import Counter
from statistics import median

import numpy as np
import psutil

from testbed.server_process import RunningServer
from tests.support.server_processes import processes
from tests.support.soak.checks import holdings, memory_mib, sampled_memory
from tests.support.soak.honest_caller import HonestCaller, Measurement
from tests.support.soak.report import table

_MAX_GROWTH_MIB, _SETTLE_S = 256.0, 30.0
_CALM_S = 20.0
# The longest attack on the other server, and the largest 99th percentile of the honest caller, in those without the
# attack.
_BESIDE_S, _MAX_P99_RATIO = 60.0, 3.0


class _Readiness:
    """Asks every half second whether the server is ready."""

    def __init__(self, server: RunningServer) -> None:
        self._url = server.metrics_url.replace("/metrics", "/health/ready")
        self.seconds: list[float] = []
        self.failures = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.5):
            started_s = time.monotonic()
            try:
                with urllib.request.urlopen(self._url, timeout=5) as response:
                    self.failures += response.status != 200
            except OSError:
                self.failures += 1
            self.seconds.append(time.monotonic() - started_s)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def _cpu_s(server: RunningServer) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes(server))


def _attackers(server: RunningServer, seconds: float) -> psutil.Popen:
    program, http_address = "tests.support.soak.hostile_sockets", server.metrics_url.split("/")[2]
    return psutil.Popen([sys.executable, "-m", program, server.address, http_address, str(seconds)])


def attacked_server(server: RunningServer, beside: RunningServer, seconds: float) -> list[str]:
    """Attack a server for some seconds; return the promises that the server has broken.

    Args:
        server: the server.
        beside: another server, which the attackers attack first: that shows what they and their victim take from the
            processor.
        seconds: the length of the attack.
    """
    calm, other, attacked, after = Measurement(), Measurement(), Measurement(), Measurement()
    with HonestCaller(server.address) as caller:
        with caller.measuring(calm):
            time.sleep(_CALM_S)
        attackers = _attackers(beside, min(seconds, _BESIDE_S))
        with caller.measuring(other):
            attackers.wait()
        before_mib, pids = memory_mib(server), {each.pid for each in processes(server)}
        readiness = _Readiness(server)
        attackers = _attackers(server, seconds)
        cpu_before, wall_s = _cpu_s(server), time.monotonic()
        with sampled_memory(server) as samples_mib, caller.measuring(attacked):
            while attackers.is_running() and time.monotonic() - wall_s < seconds:
                time.sleep(0.5)
        share = (_cpu_s(server) - cpu_before) / (time.monotonic() - wall_s)
        attackers.wait()
        readiness.stop()
        time.sleep(_SETTLE_S)
        with caller.measuring(after):
            time.sleep(_CALM_S)
    rows = [
        (
            name,
            f"{len(each.latencies_ms):,}",
            f"{median(each.latencies_ms):.2f}",
            f"{each.p99_ms:.2f}",
            str(_kinds(each.errors)),
        )
        for name, each in (
            ("calm", calm),
            ("another server attacked", other),
            ("attacked", attacked),
            ("30 s later", after),
        )
    ]
    print(table(("honest caller", "answers", "p50 ms", "p99 ms", "errors"), rows))
    growths_mib = [round(sample - before_mib) for sample in samples_mib]
    tenths = [max(part) for part in np.array_split(growths_mib, min(10, len(growths_mib)))]
    print(
        f"memory: in each tenth of the attack at most {', '.join(f'+{each}' for each in tenths)} MiB; "
        f"+{memory_mib(server) - before_mib:.0f} MiB after {_SETTLE_S:.0f} s; the server took {share:.2f} cores; "
        f"readiness: {len(readiness.seconds)} answers, {readiness.failures} failures, "
        f"{max(readiness.seconds):.2f} s at most; {holdings(server)['open files']} descriptors"
    )
    broken = [f"memory grew by {max(growths_mib)} MiB"] * (max(growths_mib) > _MAX_GROWTH_MIB)
    ratio = attacked.p99_ms / max(calm.p99_ms, other.p99_ms)
    broken += [f"p99 is {ratio:.1f} times as high under attack"] * (ratio > _MAX_P99_RATIO)
    broken += [f"readiness failed {readiness.failures} times"] * bool(readiness.failures)
    broken += ["a front end was started again"] * (pids != {each.pid for each in processes(server)})
    errors = attacked.errors + after.errors
    broken += [f"the honest caller got {_kinds(errors)}, for example {next(iter(errors), '')}"] * bool(errors)
    return broken


def _kinds(errors: Counter[str]) -> dict[str, int]:
    kinds = Counter[str]()
    for error, count in errors.items():
        kinds[error.partition(" ")[0]] += count
    return dict(kinds)
