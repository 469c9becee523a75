"""Latency and goodput when requests come at random, whether the server keeps up or not."""

from dataclasses import dataclass
from functools import partial

from bench.effort import Effort
from bench.loads.load import open_loop
from bench.loads.traces import Trace
from bench.measure import DEADLINE_S, Contender, Fleet, Run, measure, median
from bench.studies.throughput import Served, Throughput
from testbed.server_process import RunningServer

# Shares of Headwaiter's capacity, which is its throughput in the closed loop.
COMPARED = 0.7
SUSTAINED = (0.5, COMPARED, 0.9)
OVERLOAD = (1.2, 2.0)


@dataclass(frozen=True)
class Loaded:
    """One server at one load; the rounds' runs."""

    contender: Contender
    load: float
    runs: list[Run]


@dataclass(frozen=True)
class OpenLoop:
    """All servers on one trace, Headwaiter first.

    Attributes:
        trace: its name.
        capacity_s: requests a second that are a load of 1.
        capacity_tokens_s: tokens a second that are a load of 1.
        loaded: each server at each load that it can be expected to sustain, and Headwaiter beyond.
    """

    trace: str
    capacity_s: float
    capacity_tokens_s: float
    loaded: list[Loaded]


def open_loops(trace: Trace, closed: Throughput, fleet: Fleet, effort: Effort, *, overload: bool) -> OpenLoop:
    """Load every server below Headwaiter's capacity without deadlines, and Headwaiter above it with a deadline.

    A server takes part at a load that is below its own throughput in the closed loop.
    """
    capacity = median(closed.ours.runs)
    loads = {served.contender: _within(served, capacity.requests_s) for served in closed.served}
    runs: dict[tuple[Contender, float], list[Run]] = {}
    for seed in range(effort.rounds):
        fleet.renew()
        for contender, within in loads.items():
            for load in within:
                # One round is enough of what is shown and not compared.
                if seed == 0 or load == COMPARED:
                    seconds = effort.compared_s if load == COMPARED else effort.open_s
                    run = _run(fleet[contender], trace, load * capacity.requests_s, seconds, seed)
                    runs.setdefault((contender, load), []).append(run)
    ours = closed.ours.contender
    for load in OVERLOAD if overload else ():
        rate_s = load * capacity.requests_s
        runs[ours, load] = [_run(fleet[ours], trace, rate_s, effort.overload_s, 0, DEADLINE_S)]
    loaded = [Loaded(contender, load, rounds) for (contender, load), rounds in runs.items()]
    return OpenLoop(trace.name, capacity.requests_s, capacity.tokens_s, loaded)


def _within(served: Served, capacity_s: float) -> list[float]:
    """Return the loads below a server's throughput; of a setting that is not its family's best, the one compared."""
    shown = SUSTAINED if served.best or not served.contender.policy else (COMPARED,)
    own_s = median(served.runs).requests_s
    return [load for load in shown if load * capacity_s < own_s]


def _run(
    server: RunningServer, trace: Trace, rate_s: float, duration_s: float, seed: int, deadline_s: float | None = None
) -> Run:
    offer = partial(
        open_loop,
        sequences=trace.sequences,
        rate_s=rate_s,
        duration_s=duration_s,
        deadline_s=deadline_s,
        seed=seed,
    )
    return measure(server, offer)
