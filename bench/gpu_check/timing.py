"""Times what runs again and again."""

import statistics
import time
from collections.abc import Callable, Mapping

from bench.gpu_check.setting import Setting


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


def rounds_of(runs: Mapping[str, Callable[[], object]], setting: Setting) -> dict[str, list[float]]:
    """Return the seconds of runs that are compared, which take turns; each has run before."""
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(setting.effort.rounds):
        for name, run in runs.items():
            taken[name].append(seconds(run, setting))
    return taken


def ratio(ours: list[float], theirs: list[float]) -> float:
    """Return how many times as fast ours is: the median over rounds, as what disturbs a round disturbs both."""
    return statistics.median(their / our for our, their in zip(ours, theirs, strict=True))
