"""Three costs: of gRPC and the scheduler for a single request, of metrics, and of poisoned sequences for others."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from bench.loads.raw_calls import closed_loop, closed_loop_beside, failed_inside
from bench.loads.traces import Ids, Trace
from bench.measure import HEADWAITER, MINIMAL, Fleet, Measurement, ServerSetup, measure, ratio
from bench.processes import LOAD_CORE, SERVER_CORE, pin
from bench.run_sizes import RunSizes
from bench.servers.poisoned import POISON
from bench.servers.silent import RECORD, SILENCE
from bench.studies.ceiling import alone_s
from bench.studies.throughput import PACKED, REQUESTERS
from headwaiter_client.cli.load_generator import Load
from testbed.minilm import bundle

_POISONED = ServerSetup("Headwaiter with a graph that fails on poison", module="bench.servers.poisoned")
_SILENCEABLE = ServerSetup("Headwaiter with metrics on or off", module="bench.servers.silent")
_POISON_EVERY_S = 0.1
# Many short runs in turn, because the speed of a machine drifts from minute to minute.
_PAIRS_PER_ROUND = 3


@dataclass(frozen=True)
class SingleRequest:
    """Latencies of one requester at an idle server, in ms: one median over the sequences per pass.

    Attributes:
        served_ms: latency over gRPC.
        bare_ms: `session.run` of the same sequences.
        added_ms: the difference between the two for each sequence.
        added_by_minimal_server_ms: the same difference for a minimal server.
    """

    served_ms: list[float]
    bare_ms: list[float]
    added_ms: list[float]
    added_by_minimal_server_ms: list[float]


@dataclass(frozen=True)
class MetricsCost:
    """Metrics on / metrics off, medians over pairs of runs.

    Attributes:
        throughput: ratio of tokens per second.
        cpu: ratio of tokens per CPU second of the server.
    """

    throughput: float
    cpu: float


@dataclass(frozen=True)
class PoisonCost:
    """Ten poisoned sequences per second beside a closed loop.

    Attributes:
        throughput: tokens per second of the other sequences with poison / without, median over pairs of runs.
        seconds: seconds with poison, all runs together.
        failed_poison: poisoned sequences that failed with INTERNAL / poisoned sequences sent.
        failed_others: requests of other sequences that failed.
    """

    throughput: float
    seconds: float
    failed_poison: float
    failed_others: int


def single_request(trace: Trace, fleet: Fleet, sizes: RunSizes) -> SingleRequest:
    """Send one sequence at a time, and run the same sequences without a server."""
    sequences = trace.first(sizes.sweep_tokens).sequences
    figures = SingleRequest([], [], [], [])
    for _ in range(_PAIRS_PER_ROUND * sizes.rounds):
        pin(SERVER_CORE)
        bare_ms = np.array(alone_s(sequences, bundle() / PACKED)) * 1e3
        pin(LOAD_CORE)
        served_ms, by_minimal_server_ms = (
            _latencies_ms(fleet[setup].address, sequences) for setup in (HEADWAITER, MINIMAL)
        )
        figures.served_ms.append(float(np.median(served_ms)))
        figures.bare_ms.append(float(np.median(bare_ms)))
        figures.added_ms.append(float(np.median(served_ms - bare_ms)))
        figures.added_by_minimal_server_ms.append(float(np.median(by_minimal_server_ms - bare_ms)))
    return figures


def _latencies_ms(address: str, sequences: Sequence[Ids]) -> NDArray[np.float64]:
    return np.array([outcome.latency_s for outcome in closed_loop(address, sequences, 1).outcomes]) * 1e3


def metrics(trace: Trace, fleet: Fleet, sizes: RunSizes) -> MetricsCost:
    """Run Headwaiter with metrics on and off, in turn."""
    sequences = trace.first(sizes.trace_tokens).sequences
    server = fleet[_SILENCEABLE]
    on: list[Measurement] = []
    off: list[Measurement] = []
    turns = [(RECORD, on), (SILENCE, off)]
    for _ in range(_PAIRS_PER_ROUND * sizes.rounds):
        # Alternate the order, because the second run of a pair may have an advantage.
        turns.reverse()
        for signal, measured in turns:
            server.process.send_signal(signal)
            measured.append(measure(server, partial(closed_loop, sequences=sequences, requesters=REQUESTERS)))
    return MetricsCost(ratio(on, off, "tokens_per_s"), ratio(on, off, "tokens_per_cpu_s"))


def poison(trace: Trace, fleet: Fleet, sizes: RunSizes) -> PoisonCost:
    """Run Headwaiter with and without poisoned sequences beside the trace, in turn."""
    sequences = list(trace.first(sizes.trace_tokens).sequences) * sizes.poison_repeats
    server = fleet[_POISONED]
    clean: list[Measurement] = []
    poisoned: list[Measurement] = []
    loads: list[Load] = []
    poison_loads: list[Load] = []

    def send_with_poison(address: str) -> Load:
        load, poison_load = closed_loop_beside(address, sequences, REQUESTERS, POISON, _POISON_EVERY_S)
        loads.append(load)
        poison_loads.append(poison_load)
        return load

    for _ in range(sizes.rounds):
        clean.append(measure(server, partial(closed_loop, sequences=sequences, requesters=REQUESTERS)))
        poisoned.append(measure(server, send_with_poison))
    seconds = sum(load.answered_s for load in loads)
    failed_poison = sum(len(failed_inside(load)) for load in poison_loads) * _POISON_EVERY_S / seconds
    failed_others = sum(len(load.outcomes) - len(load.answered) for load in loads)
    return PoisonCost(ratio(poisoned, clean, "tokens_per_s"), seconds, failed_poison, failed_others)
