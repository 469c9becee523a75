"""Measure an honest caller, memory and readiness while a program attacks the server."""

import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import psutil

from headwaiter_client import Client, HeadwaiterError, RetryPolicy, Unauthenticated
from testbed.server_process import RunningServer
from tests.support.server_processes import processes
from tests.support.soak.checks import holdings, memory_mib, sampled_memory
from tests.support.soak.honest_caller import HonestCaller, Measurement
from tests.support.soak.report import table

_MAX_GROWTH_MIB, _SETTLE_S = 256.0, 30.0
_CALM_S = 20.0
# The tokens of the honest caller, and of callers that take what they may.
HONEST_TOKEN, GREEDY_TOKEN = "honest-token", "greedy-token"
_ROTATION_INTERVAL_S, _ROTATION_S = 20.0, 5.0
# New connections reach both front ends with near certainty.
_CONNECTIONS = 8


def run_together(*attacks: Callable[[], None]) -> None:
    """Run each function in a thread, until all have ended."""
    threads = [threading.Thread(target=each) for each in attacks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class _Rotation:
    """Replaces a token in a file again and again, and notes how long the server takes to follow."""

    def __init__(self, server: RunningServer, file: Path) -> None:
        self._address, self._file = server.address, file
        self.seconds: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(_ROTATION_INTERVAL_S):
            number += 1
            write_tokens(self._file, f"rotated-{number}")
            started_s, new, old = time.monotonic(), f"rotated-{number}", f"rotated-{number - 1}"
            while time.monotonic() - started_s < 60 and not (
                all(self._accepts(new) for _ in range(_CONNECTIONS))
                and not any(self._accepts(old) for _ in range(_CONNECTIONS))
            ):
                time.sleep(0.1)
            self.seconds.append(time.monotonic() - started_s)

    def _accepts(self, token: str) -> bool:
        options = {"token": token, "retry": RetryPolicy(max_attempts=1), "timeout_s": 60}
        with Client(self._address, **options) as client:  # type: ignore[arg-type]
            try:
                client.models()
            except Unauthenticated:
                return False
            except HeadwaiterError:
                return True
            return True


def write_tokens(file: Path, rotated: str) -> None:
    """Write the tokens of all callers to a file, in one step."""
    tokens = {"honest": HONEST_TOKEN, "greedy": GREEDY_TOKEN, "rotated": rotated}
    whole = file.with_suffix(".new")
    whole.write_text("".join(f"{name}: {token}\n" for name, token in tokens.items()))
    whole.replace(file)


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


def _attackers(program: str, server: RunningServer, seconds: float) -> psutil.Popen:
    http_address = server.metrics_url.split("/")[2]
    return psutil.Popen([sys.executable, "-m", program, server.address, http_address, str(seconds)])


def attacked_server(
    program: str,
    server: RunningServer,
    beside: RunningServer,
    seconds: float,
    beside_s: float,
    max_p99_ratio: float,
    token_file: Path | None = None,
) -> list[str]:
    """Attack a server for some seconds; return the promises that the server has broken.

    Args:
        program: the module that attacks, given the addresses of gRPC and of HTTP, and the seconds.
        server: the server.
        beside: another server, which the attackers attack first: that shows what they and their victim take from the
            processor.
        seconds: the length of the attack.
        beside_s: the longest attack on the other server.
        max_p99_ratio: the largest 99th percentile of the honest caller, in those without the attack.
        token_file: the file with the tokens of the server; None if the server needs none.
    """
    calm, other, attacked, after = Measurement(), Measurement(), Measurement(), Measurement()
    with HonestCaller(server.address, HONEST_TOKEN if token_file else "") as caller:
        with caller.measuring(calm):
            time.sleep(_CALM_S)
        attackers = _attackers(program, beside, min(seconds, beside_s))
        with caller.measuring(other):
            attackers.wait()
        before_mib, pids = memory_mib(server), {each.pid for each in processes(server)}
        readiness = _Readiness(server)
        rotation = None if token_file is None else _Rotation(server, token_file)
        attackers = _attackers(program, server, seconds)
        cpu_before, wall_s = _cpu_s(server), time.monotonic()
        with sampled_memory(server) as samples_mib, caller.measuring(attacked):
            while attackers.is_running() and time.monotonic() - wall_s < seconds:
                time.sleep(0.5)
        share = (_cpu_s(server) - cpu_before) / (time.monotonic() - wall_s)
        attackers.wait()
        readiness.stop()
        if rotation is not None:
            rotation.stop()
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
    broken += [f"p99 is {ratio:.1f} times as high under attack"] * (ratio > max_p99_ratio)
    broken += [f"readiness failed {readiness.failures} times"] * bool(readiness.failures)
    broken += ["a front end was started again"] * (pids != {each.pid for each in processes(server)})
    if rotation is not None:
        print(f"rotation: {len(rotation.seconds)} tokens replaced, {max(rotation.seconds):.1f} s at most")
        broken += [f"a new token took {max(rotation.seconds):.1f} s"] * (max(rotation.seconds) > _ROTATION_S)
    errors = attacked.errors + after.errors
    broken += [f"the honest caller got {_kinds(errors)}, for example {next(iter(errors), '')}"] * bool(errors)
    return broken


def _kinds(errors: Counter[str]) -> dict[str, int]:
    kinds = Counter[str]()
    for error, count in errors.items():
        kinds[error.partition(" ")[0]] += count
    return dict(kinds)
