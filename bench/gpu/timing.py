"""Times what runs again and again."""

import statistics
import time
from collections.abc import Callable, Mapping

from bench.gpu.findings import Findings
from bench.gpu.setting import Setting


def seconds(run: Callable[[], object], setting: Setting) -> float:
    """Return how long a run takes, until the device is through with it."""
    setting.synchronize()
    started_s = time.perf_counter()
    run()
    setting.synchronize()
    return time.perf_counter() - started_s


def median_seconds(run: Callable[[], object], setting: Setting, rounds: int) -> float:
    """Return the median of so many runs, after one that does not count."""
    run()
    return statistics.median(seconds(run, setting) for _ in range(rounds))


def rounds_of(runs: Mapping[str, Callable[[], object]], setting: Setting, findings: Findings) -> dict[str, list[float]]:
    """Return the seconds of runs that are compared, which take turns, after a round that does not count.

    One that fails is a line in the findings, and runs no more.
    """
    taken: dict[str, list[float]] = {name: [] for name in runs}
    rounds = setting.effort.rounds + 1
    for ran in range(rounds):
        for name, run in runs.items():
            if len(taken[name]) == ran:
                with findings.attempt(name):
                    taken[name].append(seconds(run, setting))
    return {name: each[1:] for name, each in taken.items() if len(each) == rounds}


def ratio(ours: list[float], theirs: list[float]) -> float:
    """Return how many times as fast ours is: the median over rounds, as what disturbs a round disturbs both."""
    return statistics.median(their / our for our, their in zip(ours, theirs, strict=True))
