"""Count the requests and the batches of one version of a model, and add up their times.

Prometheus' histograms hold most of these numbers, but neither exact times per batch size nor the times of failures.
"""

import time
from collections import defaultdict
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from threading import Lock


@dataclass(slots=True)
class Total:
    """How often something happened, and how long it took in total."""

    count: int = 0
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one event that took this many seconds."""
        self.count += 1
        self.seconds += seconds

    def add_total(self, other: "Total") -> None:
        """Add what another process has counted."""
        self.count += other.count
        self.seconds += other.seconds


@dataclass(slots=True)
class BatchTotals:
    """The packing and the runs of all batches of one size."""

    packing: Total = field(default_factory=Total)
    runs: Total = field(default_factory=Total)


@dataclass
class Totals:
    """The totals since the model was loaded.

    Attributes:
        succeeded: the encode requests that were answered, timed from arrival to reply.
        failed: the encode requests that failed after their model was found, timed from arrival to failure.
        stages: the stages of the answered requests, by name.
        batches: the batches, by number of sequences.
        latest_unix_s: when the latest request was answered, in seconds since 1970-01-01; 0 before the first.
    """

    succeeded: Total = field(default_factory=Total)
    failed: Total = field(default_factory=Total)
    stages: defaultdict[str, Total] = field(default_factory=lambda: defaultdict(Total))
    batches: defaultdict[int, BatchTotals] = field(default_factory=lambda: defaultdict(BatchTotals))
    latest_unix_s: float = 0.0

    @property
    def sequences(self) -> int:
        """Number of sequences that ran."""
        return sum(size * totals.runs.count for size, totals in self.batches.items())

    @property
    def batch_count(self) -> int:
        """Number of batches that ran."""
        return sum(totals.runs.count for totals in self.batches.values())

    def add(self, other: "Totals") -> None:
        """Add what another process has counted."""
        self.succeeded.add_total(other.succeeded)
        self.failed.add_total(other.failed)
        for stage, total in other.stages.items():
            self.stages[stage].add_total(total)
        for size, batches in other.batches.items():
            self.batches[size].packing.add_total(batches.packing)
            self.batches[size].runs.add_total(batches.runs)
        self.latest_unix_s = max(self.latest_unix_s, other.latest_unix_s)


class ModelStatistics:
    """Keeps the totals of one version of a model. Any thread may use it."""

    def __init__(self) -> None:
        self._totals = Totals()
        self._lock = Lock()

    def totals(self) -> Totals:
        """Return a copy of the totals."""
        with self._lock:
            return deepcopy(self._totals)

    def request_answered(self, total_s: float, stages_s: Mapping[str, float]) -> None:
        """Record an answered request, its total time, and the time of each stage."""
        with self._lock:
            self._totals.latest_unix_s = time.time()
            self._totals.succeeded.add(total_s)
            for stage, seconds in stages_s.items():
                self._totals.stages[stage].add(seconds)

    def request_failed(self, total_s: float) -> None:
        """Record that a request failed."""
        with self._lock:
            self._totals.failed.add(total_s)

    def batch_ran(self, sequences: int, packing_s: float, run_s: float) -> None:
        """Record that a batch ran."""
        with self._lock:
            batches = self._totals.batches[sequences]
            batches.packing.add(packing_s)
            batches.runs.add(run_s)
