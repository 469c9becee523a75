"""Measure what gRPC and the scheduler add to one request, and how poisoned sequences slow others."""

from collections.abc import Sequence
from functools import partial

import grpc
import numpy as np
from numpy.typing import NDArray

from bench.loads.raw_calls import closed_loop, closed_loop_beside, failed_with
from bench.loads.traces import Ids
from bench.measure import HEADWAITER, MINIMAL, ServerSetup, measure, ratio
from bench.processes import LOAD_CORE, SERVER_CORE, in_turn, pin
from bench.rounds import Rounds
from bench.run import Run
from bench.servers.modified import POISON
from bench.studies.ceiling import alone_s
from bench.studies.throughput import PACKED, REQUESTERS
from headwaiter_client.cli.load_generator import Load
from testbed.minilm import bundle

_POISONED = ServerSetup("Headwaiter with a graph that fails on poison", program=("bench.servers.modified", "poisoned"))
_POISON_EVERY_S = 0.1
# Many short runs in turn, because the speed of a machine drifts from minute to minute.
_PAIRS_PER_ROUND = 3


def single_request(run: Run) -> None:
    """Send one sequence at a time to an idle server, and run the same sequences without a server."""
    sequences = run.traces[0].first(run.sizes.sweep_tokens).sequences
    served_ms, bare_ms, added_ms, added_by_minimal_ms = Rounds(), Rounds(), Rounds(), Rounds()
    for _ in range(_PAIRS_PER_ROUND * run.sizes.rounds):
        pin(SERVER_CORE)
        bare = np.array(alone_s(sequences, bundle() / PACKED)) * 1e3
        pin(LOAD_CORE)
        served, by_minimal = (_latencies_ms(run.fleet[setup].address, sequences) for setup in (HEADWAITER, MINIMAL))
        served_ms.append(float(np.median(served)))
        bare_ms.append(float(np.median(bare)))
        added_ms.append(float(np.median(served - bare)))
        added_by_minimal_ms.append(float(np.median(by_minimal - bare)))
    findings = run.figures.findings.of_part("one requester")
    findings.record("p50 served, ms", served_ms)
    findings.record("p50 of the graph, ms", bare_ms)
    findings.record("p50 of the time that a minimal server adds to the graph's, ms", added_by_minimal_ms)
    name = f"p50 of the time that Headwaiter adds to the graph's, ms (a minimal server: {added_by_minimal_ms:.2f})"
    findings.require(name, added_ms, "≤", 1.0)


def _latencies_ms(address: str, sequences: Sequence[Ids]) -> NDArray[np.float64]:
    return np.array([outcome.latency_s for outcome in closed_loop(address, sequences, 1).outcomes]) * 1e3


def poison(run: Run) -> None:
    """Run Headwaiter with and without ten poisoned sequences per second beside the trace, in turn."""
    sequences = list(run.traces[0].first(run.sizes.trace_tokens).sequences) * run.sizes.poison_repeats
    server = run.fleet[_POISONED]
    loads: list[Load] = []
    poison_loads: list[Load] = []

    def send_with_poison(address: str) -> Load:
        load, poison_load = closed_loop_beside(address, sequences, REQUESTERS, POISON, _POISON_EVERY_S)
        loads.append(load)
        poison_loads.append(poison_load)
        return load

    send_clean = partial(closed_loop, sequences=sequences, requesters=REQUESTERS)
    poisoned, clean = in_turn(
        partial(measure, server, send_with_poison), partial(measure, server, send_clean), run.sizes.rounds
    )
    seconds = sum(load.answered_s for load in loads)
    failed_poison = sum(len(failed_with(load, grpc.StatusCode.INTERNAL)) for load in poison_loads)
    failed_others = sum(len(load.outcomes) - len(load.answered) for load in loads)
    findings = run.figures.findings.of_part(f"ten poisoned sequences per second for {seconds:.0f} s")
    throughput = ratio(poisoned, clean, "tokens_per_s")
    findings.require("tokens/s of the other sequences: with / without poisoned sequences", throughput, ">", 0.9)
    findings.require("poisoned sequences: failed / sent", failed_poison * _POISON_EVERY_S / seconds, "≥", 0.95)
    findings.require("other sequences without an answer", failed_others, "≤", 0.0)
