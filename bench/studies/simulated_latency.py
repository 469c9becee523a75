"""Simulate the latency of requests under the planner, with a cost model in place of a device.

Run it with `python -m bench.studies.simulated_latency`. It prints the throughput, p50 and p99 of requests of one
sequence, divided by those of a server that runs one sequence at a time: for two traces, for a closed loop of 32 callers
and for open loops at 70 and 90 % of that server's throughput. It varies the number of the oldest sequences among which
the planner may choose. A rule for the order of the queue is judged here first, because the figures have no noise.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import NamedTuple
from unittest.mock import patch

import numpy as np

from bench.loads.traces import MEDIAN_30, MEDIAN_90
from bench.studies.in_process import arrived, take_batch
from headwaiter_server.scheduling import planner
from headwaiter_server.scheduling.cost import BatchLimits, CostModel
from headwaiter_server.scheduling.pending import Pending

# What the server measured of all-MiniLM-L6-v2 on one core of an Intel Xeon.
_COST = CostModel(launch_s=3.3e-3, token_s=1.2e-4, padded_s=1.8e-5, cell_s=2.1e-7)
_LIMITS, _ONE_BY_ONE = BatchLimits(tokens=512, cells=1_400_000), BatchLimits(tokens=1, cells=1)
_CALLERS, _SEQUENCES = 32, 3_000
# The planner may choose among the oldest waiting sequences that fill this number of token budgets.
_BUDGETS_TO_CHOOSE_FROM = (float("inf"), 3.0, 2.0, 1.5, 1.25, 1.0)
# A caller receives its reply and sends its next request in this time.
_ROUND_TRIP_S = (0.5e-3, 1.5e-3)
# A batch is planned this long before the batch before it ends.
_LEAD_S = 2e-3


class _Figures(NamedTuple):
    requests_per_s: float
    p50_s: float
    p99_s: float


@dataclass(frozen=True)
class _Load:
    """Requests of one sequence: of callers that wait for their replies, or at random times if `rate` is given."""

    lengths: list[int]
    rate: float = 0.0

    def simulate(self, limits: BatchLimits) -> _Figures:
        """Return the figures of a device that runs batches within the limits."""
        random, numbers, lengths = Random(0), count(), iter(self.lengths)
        arrivals: list[tuple[float, int]] = []
        pending, arrived_s, latencies_s = Pending(), dict[int, float](), list[float]()
        if self.rate:
            times = np.cumsum([random.expovariate(self.rate) for _ in self.lengths])
            arrivals = [(float(time_s), next(numbers)) for time_s in times]
        else:
            arrivals = [(random.uniform(0, 0.01), next(numbers)) for _ in range(_CALLERS)]
        heapq.heapify(arrivals)
        now_s = free_s = 0.0
        while arrivals or pending:
            now_s = max(now_s, free_s - _LEAD_S) if pending else max(now_s, free_s - _LEAD_S, arrivals[0][0])
            while arrivals and arrivals[0][0] <= now_s:
                time_s, number = heapq.heappop(arrivals)
                if length := next(lengths, 0):
                    arrived_s[number] = time_s
                    pending.add(arrived(length, number, time_s, _COST))
            if not pending:
                continue
            planned = take_batch(pending, now_s, _COST, limits)
            free_s = max(free_s, now_s) + planned.seconds
            for sequence in planned.batch:
                latencies_s.append(free_s - arrived_s[sequence.index])
                if not self.rate:
                    heapq.heappush(arrivals, (free_s + random.uniform(*_ROUND_TRIP_S), next(numbers)))
        p50_s, p99_s = np.percentile(latencies_s, (50, 99))
        return _Figures(len(latencies_s) / free_s, float(p50_s), float(p99_s))


def _loads() -> Iterator[tuple[str, _Load]]:
    for distribution in (MEDIAN_30, MEDIAN_90):
        lengths = [len(ids) for ids in distribution.trace(_SEQUENCES, vocabulary_size=10).sequences]
        closed = _Load(lengths)
        capacity_per_s = closed.simulate(_ONE_BY_ONE).requests_per_s
        yield f"{distribution.name}, {_CALLERS} callers", closed
        for share in (0.7, 0.9):
            yield f"{distribution.name}, {share:.0%} load", _Load(lengths, share * capacity_per_s)


def main() -> None:
    """Print the figures."""
    print("all figures / those of one sequence at a time")
    print("load | token budgets to choose from | requests/s | p50 | p99")
    for name, load in _loads():
        one = load.simulate(_ONE_BY_ONE)
        for budgets in _BUDGETS_TO_CHOOSE_FROM:
            with patch.object(planner, "BUDGETS_TO_CHOOSE_FROM", budgets):
                ours = load.simulate(_LIMITS)
            ratios = " | ".join(f"{mine / theirs:.2f}" for mine, theirs in zip(ours, one, strict=True))
            print(f"{name} | {budgets:g} | {ratios}", flush=True)


if __name__ == "__main__":
    main()
