"""Simulate ten replicas behind four ways to share calls among them, from the batches of a real server.

Run it with `python -m bench.studies.balancing`. First it records the batches of all-MiniLM-L6-v2 on one core under 70 %
load: what the server predicts for a batch, and measured / predicted. Then it simulates ten replicas that plan batches
with the server's planner, each batch with a ratio drawn from the record, and prints p50 and p99 of requests of one
sequence at 50, 70 and 90 % of the throughput of ten such replicas, with equal replicas and with one slow replica. The
callers share the requests among the replicas

- by connection: each caller has one connection, as through a proxy that knows TCP only, such as a Kubernetes Service;
- in turn: each caller's calls go to the replicas in turn;
- by the caller's own calls: to the replica with the fewest calls of this caller in flight, as the client does it;
- by all calls: to the replica with the fewest calls of all callers in flight, as one proxy does it.
"""

import heapq
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from random import Random

import numpy as np

from bench.loads.raw_calls import closed_loop, open_loop
from bench.loads.traces import MEDIAN_30
from bench.measure import HEADWAITER, Fleet
from bench.processes import LOAD_CORE, pin
from bench.studies.in_process import arrived, take_batch
from headwaiter_client import Client
from headwaiter_client.transport.replicas import Replicas
from headwaiter_server.runtime.bundle import Bundle
from headwaiter_server.scheduling.cost import BatchLimits, CostModel
from headwaiter_server.scheduling.pending import Pending
from headwaiter_server.scheduling.queued_request import Sequence as Waiting
from testbed.minilm import bundle

LOADS = (0.5, 0.7, 0.9)
_REPLICAS, _CALLERS = 10, 24
# The slow replica takes this many times as long for each batch.
_SLOW = 1.5
_RUN_S, _WARM_UP_S = 60.0, 5.0
# A replica whose work lasts longer than this after the last arrival was offered more than it can do.
_OVERLOADED_S = 1.5
# A batch is planned this long before the batch before it ends.
_LEAD_S = 2e-3
_SEQUENCES = 2_000
_RECORDED_REQUESTERS, _RECORDED_LOAD, _RECORDED_S, _POLL_S = 64, 0.7, 40.0, 0.5


@dataclass(frozen=True)
class Recorded:
    """What a server predicts for its batches, and measured / predicted seconds of batches that it has run."""

    cost: CostModel
    limits: BatchLimits
    ratios: Sequence[float]
    lengths: Sequence[int]


@dataclass(frozen=True)
class Balanced:
    """Milliseconds from the arrival of a request to the end of its batch.

    Attributes:
        overloaded: whether a replica was offered more than it can do; then the figures grow with the length of the run.
    """

    p50_ms: float
    p99_ms: float
    overloaded: bool


@dataclass
class Calls:
    """What is known to choose the replica of a call.

    Attributes:
        clients: for each caller, the client's own rule.
        in_flight: for each caller and each replica, the number of calls in flight.
    """

    clients: list[Replicas]
    in_flight: list[list[int]]
    random: Random = field(default_factory=lambda: Random(0))

    def __post_init__(self) -> None:
        self._turns = [count(caller) for caller in range(len(self.in_flight))]

    def by_connection(self, caller: int) -> int:
        """Return the replica to which the caller is connected."""
        return caller % len(self.in_flight[caller])

    def in_turn(self, caller: int) -> int:
        """Return the replica that is next in the caller's turn."""
        return next(self._turns[caller]) % len(self.in_flight[caller])

    def fewest_of_caller(self, caller: int) -> int:
        """Return the replica that the client chooses: one with the fewest calls of this caller in flight."""
        return self.clients[caller].next(0.0)

    def fewest_of_all(self, _: int) -> int:
        """Return a replica with the fewest calls of all callers in flight."""
        in_flight = [sum(calls) for calls in zip(*self.in_flight, strict=True)]
        fewest = min(in_flight)
        return self.random.choice([replica for replica, calls in enumerate(in_flight) if calls == fewest])


Rule = Callable[[Calls, int], int]
RULES: dict[str, Rule] = {
    "by connection": Calls.by_connection,
    "in turn": Calls.in_turn,
    "fewest of the caller's own calls (the client)": Calls.fewest_of_caller,
    "fewest of all calls": Calls.fewest_of_all,
}


@dataclass
class _Replica:
    slow: float
    pending: Pending = field(default_factory=Pending)
    free_s: float = 0.0
    is_planned: bool = False


class Simulation:
    """Replicas that callers share by a rule.

    Args:
        recorded: the batches.
        rule: chooses the replica of a call.
        slow: for each replica, how many times as long its batches take.

    Attributes:
        latencies_s: seconds from the arrival of each request to the end of its batch, without the first requests.
    """

    def __init__(self, recorded: Recorded, rule: Rule, slow: Sequence[float]) -> None:
        self._recorded, self._rule, self._random = recorded, rule, Random(0)
        self._replicas = [_Replica(factor) for factor in slow]
        clients = [Replicas(len(slow), caller % len(slow), probe_first=False) for caller in range(_CALLERS)]
        self._calls = Calls(clients, [[0] * len(slow) for _ in range(_CALLERS)])
        self._numbers = count()
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._arrived: dict[int, tuple[float, int]] = {}
        self.latencies_s: list[float] = []

    def run(self, rate_per_s: float, run_s: float = _RUN_S) -> Balanced:
        """Simulate requests at random times."""
        last_s = 0.0
        while (last_s := last_s + self._random.expovariate(rate_per_s)) < run_s:
            self._at(last_s, self._arrive)
        while self._events:
            now_s, _, event = heapq.heappop(self._events)
            event(now_s)
        p50_s, p99_s = np.percentile(self.latencies_s, (50, 99))
        overloaded = max(replica.free_s for replica in self._replicas) > run_s + _OVERLOADED_S
        return Balanced(float(p50_s) * 1e3, float(p99_s) * 1e3, overloaded)

    def _at(self, time_s: float, event: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (time_s, next(self._numbers), event))

    def _arrive(self, now_s: float) -> None:
        caller, number = self._random.randrange(_CALLERS), next(self._numbers)
        index = self._rule(self._calls, caller)
        self._calls.in_flight[caller][index] += 1
        self._arrived[number] = now_s, caller
        length = self._random.choice(self._recorded.lengths)
        self._replicas[index].pending.add(arrived(length, number, now_s, self._recorded.cost))
        self._plan_soon(index, now_s)

    def _plan_soon(self, index: int, now_s: float) -> None:
        replica = self._replicas[index]
        if replica.pending and not replica.is_planned:
            replica.is_planned = True
            self._at(max(now_s, replica.free_s - _LEAD_S), partial(self._plan, index))

    def _plan(self, index: int, now_s: float) -> None:
        replica = self._replicas[index]
        planned = take_batch(replica.pending, now_s, self._recorded.cost, self._recorded.limits)
        seconds = planned.seconds * self._random.choice(self._recorded.ratios) * replica.slow
        replica.free_s = max(replica.free_s, now_s) + seconds
        replica.is_planned = False
        self._at(replica.free_s, partial(self._end, index, planned.batch))
        self._plan_soon(index, now_s)

    def _end(self, index: int, batch: Sequence[Waiting], now_s: float) -> None:
        for sequence in batch:
            arrived_s, caller = self._arrived.pop(sequence.index)
            self._calls.in_flight[caller][index] -= 1
            if self._rule is Calls.fewest_of_caller:
                self._calls.clients[caller].ended(index)
            if arrived_s >= _WARM_UP_S:
                self.latencies_s.append(now_s - arrived_s)


def capacity_per_s(recorded: Recorded) -> float:
    """Return the sequences/s of one replica that never runs out of waiting sequences."""
    random, pending, seconds = Random(0), Pending(), 0.0
    for number, length in enumerate(recorded.lengths):
        pending.add(arrived(length, number, number * 1e-6, recorded.cost))
    while pending:
        seconds += take_batch(pending, 0.0, recorded.cost, recorded.limits).seconds * random.choice(recorded.ratios)
    return len(recorded.lengths) / seconds


def record() -> Recorded:
    """Record the batches of a real server: first as fast as it can, so that it learns, then under load."""
    trace = MEDIAN_30.trace(_SEQUENCES, Bundle.open(bundle()).manifest.vocabulary_size)
    ratios: dict[tuple[tuple[int, ...], float], float] = {}
    ended = threading.Event()
    with Fleet() as fleet:
        address = fleet[HEADWAITER].address
        pin(LOAD_CORE)
        load = closed_loop(address, trace.sequences, _RECORDED_REQUESTERS)
        rate_per_s = _RECORDED_LOAD * len(load.answered) / load.answered_s

        def poll() -> None:
            with Client(address) as client:
                while not ended.wait(_POLL_S):
                    for batch in client.batches():
                        ratios[batch.lengths, batch.measured_s] = batch.measured_s / batch.predicted_s

        polling = threading.Thread(target=poll)
        polling.start()
        open_loop(address, trace.sequences, rate_per_s, _RECORDED_S, None, 0)
        ended.set()
        polling.join()
        with Client(address) as client:
            execution = client.model().execution
    cost = execution.cost
    return Recorded(
        CostModel(cost.launch_s, cost.token_s, cost.padded_row_s, cost.cell_s, cost.variable_length),
        BatchLimits(tokens=execution.token_budget, cells=execution.cell_budget),
        [*ratios.values()],
        [len(ids) for ids in trace.sequences],
    )


def main() -> None:
    """Record, simulate, and print the figures."""
    recorded = record()
    replica_per_s = capacity_per_s(recorded)
    quantiles = ", ".join(f"{quantile:.2f}" for quantile in np.quantile(recorded.ratios, (0.01, 0.5, 0.99)))
    print(f"{len(recorded.ratios):,} batches, measured / predicted {quantiles} (p1, p50, p99); {recorded.cost}")
    print(f"{recorded.limits}; a replica: {replica_per_s:.0f} sequences/s")
    print("p50 / p99 in ms; +: a replica is overloaded, so the figures grow with the length of the run\n")
    for title, slow in (("equal replicas", 1.0), (f"one replica {_SLOW:g} × as slow", _SLOW)):
        print(f"| {title} | " + " | ".join(f"{load:.0%} load" for load in LOADS) + " |")
        print("|---|" + "---|" * len(LOADS))
        for name, rule in RULES.items():
            cells = []
            for load in LOADS:
                factors = [slow] + [1.0] * (_REPLICAS - 1)
                found = Simulation(recorded, rule, factors).run(load * _REPLICAS * replica_per_s)
                cells.append(f"{found.p50_ms:.0f} / {found.p99_ms:.0f}{' +' if found.overloaded else ''}")
            print(f"| {name} | {' | '.join(cells)} |", flush=True)
        print()


if __name__ == "__main__":
    main()
