"""Times functions over several rounds."""

import statistics
import time
from collections.abc import Callable, Mapping

from bench.gpu.findings import Findings
from bench.gpu.settings import Settings


def seconds(run: Callable[[], object], settings: Settings) -> float:
    """Return the seconds of one run, including the device's work."""
    settings.synchronize()
    started_s = time.perf_counter()
    run()
    settings.synchronize()
    return time.perf_counter() - started_s


def median_seconds(run: Callable[[], object], settings: Settings, rounds: int) -> float:
    """Return the median seconds of a number of runs, after one warm-up run."""
    run()
    return statistics.median(seconds(run, settings) for _ in range(rounds))


def rounds_of(
    runs: Mapping[str, Callable[[], object]], settings: Settings, findings: Findings
) -> dict[str, list[float]]:
    """Return the seconds of each run in every round, after a warm-up round; in a round the runs alternate.

    An error becomes a finding, and the run that raised it is dropped.
    """
    taken: dict[str, list[float]] = {name: [] for name in runs}
    rounds = settings.effort.rounds + 1
    for ran in range(rounds):
        for name, run in runs.items():
            if len(taken[name]) == ran:
                with findings.attempt(name):
                    taken[name].append(seconds(run, settings))
    return {name: each[1:] for name, each in taken.items() if len(each) == rounds}


def ratio(ours: list[float], theirs: list[float]) -> float:
    """Return the median over rounds of theirs / ours; a disturbance of a round slows both runs."""
    return statistics.median(their / our for our, their in zip(ours, theirs, strict=True))
