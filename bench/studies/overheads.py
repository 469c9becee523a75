"""What costs the others: gRPC and the scheduler one lonely request, counting and timing all, poison its neighbours."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from bench.loads.raw_calls import Load, closed_loop
from bench.loads.traces import Ids, Trace
from bench.measure import HEADWAITER, LOAD_CORE, SERVER_CORE, Contender, Fleet, Run, measure, pin, ratio
from bench.run_sizes import Effort
from bench.servers.poisoned import POISON
from bench.servers.silent import RECORD, SILENCE
from bench.studies.ceiling import alone_s
from bench.studies.throughput import PACKED, REQUESTERS
from testbed.minilm import bundle

_LEAST = Contender("the least that a server can do", program="bench.servers.bare")
_POISONED = Contender("Headwaiter with a graph that chokes", program="bench.servers.poisoned")
_POISON_S = 0.1
_SILENCEABLE = Contender("Headwaiter with metrics or without", program="bench.servers.silent")
# Short runs in turn: what is measured here is less than a machine's moods from minute to minute.
_PAIRS_A_ROUND = 3


@dataclass(frozen=True)
class Alone:
    """One requester and an idle server; medians over the sequences, one for each pass.

    Attributes:
        served_ms: latency over gRPC.
        bare_ms: `session.run` of the same sequence.
        added_ms: the difference, sequence by sequence.
        least_ms: the same difference for a server that does nothing but run the graph.
    """

    served_ms: list[float]
    bare_ms: list[float]
    added_ms: list[float]
    least_ms: list[float]


@dataclass(frozen=True)
class Metrics:
    """With metrics by without, medians over pairs of runs.

    Attributes:
        throughput: ratio of tokens a second.
        cpu: ratio of tokens for each second of the server's CPU time.
    """

    throughput: float
    cpu: float


@dataclass(frozen=True)
class Poison:
    """With ten poisoned sequences a second by without, medians over pairs of runs.

    Attributes:
        throughput: ratio of the other sequences' tokens a second.
        seconds: how long sequences were poisoned, in all runs together.
        blamed: poisoned sequences that failed as they should, by ten a second.
        failed: requests among the others that had no good answer.
    """

    throughput: float
    seconds: float
    blamed: float
    failed: int


def alone(trace: Trace, fleet: Fleet, effort: Effort) -> Alone:
    """Send one sequence at a time, and run the same ones bare."""
    sequences = trace.first(effort.sweep_tokens).sequences
    figures = Alone([], [], [], [])
    for _ in range(_PAIRS_A_ROUND * effort.rounds):
        pin(SERVER_CORE)
        bare_ms = np.array(alone_s(sequences, bundle() / PACKED)) * 1e3
        pin(LOAD_CORE)
        served_ms, least_ms = (_latencies_ms(fleet[each].address, sequences) for each in (HEADWAITER, _LEAST))
        figures.served_ms.append(float(np.median(served_ms)))
        figures.bare_ms.append(float(np.median(bare_ms)))
        figures.added_ms.append(float(np.median(served_ms - bare_ms)))
        figures.least_ms.append(float(np.median(least_ms - bare_ms)))
    return figures


def _latencies_ms(address: str, sequences: Sequence[Ids]) -> NDArray[np.float64]:
    return np.array([request.latency_s for request in closed_loop(address, sequences, 1).requests]) * 1e3


def metrics(trace: Trace, fleet: Fleet, effort: Effort) -> Metrics:
    """Run Headwaiter with its metrics and without, in turn."""
    sequences = trace.first(effort.trace_tokens).sequences
    server = fleet[_SILENCEABLE]
    on: list[Run] = []
    off: list[Run] = []
    turns = [(RECORD, on), (SILENCE, off)]
    for _ in range(_PAIRS_A_ROUND * effort.rounds):
        # What comes second is not always the same.
        turns.reverse()
        for told, runs in turns:
            server.process.send_signal(told)
            runs.append(measure(server, partial(closed_loop, sequences=sequences, requesters=REQUESTERS)))
    return Metrics(ratio(on, off, "tokens_s"), ratio(on, off, "tokens_cpu_s"))


def poison(trace: Trace, fleet: Fleet, effort: Effort) -> Poison:
    """Run Headwaiter with poisoned sequences among the others and without, in turn."""
    sequences = list(trace.first(effort.trace_tokens).sequences) * effort.poison_repeats
    server = fleet[_POISONED]
    clean: list[Run] = []
    poisoned: list[Run] = []
    loads: list[Load] = []

    def poisoned_loop(address: str) -> Load:
        loads.append(closed_loop(address, sequences, REQUESTERS, beside=POISON, beside_s=_POISON_S))
        return loads[-1]

    for _ in range(effort.rounds):
        clean.append(measure(server, partial(closed_loop, sequences=sequences, requesters=REQUESTERS)))
        poisoned.append(measure(server, poisoned_loop))
    seconds = sum(load.seconds for load in loads)
    blamed = sum(request.outcome == "INTERNAL" for load in loads for request in load.beside) * _POISON_S / seconds
    failed = sum(len(load.requests) - len(load.answered) for load in loads)
    return Poison(ratio(poisoned, clean, "tokens_s"), seconds, blamed, failed)
