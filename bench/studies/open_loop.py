"""Latency and goodput in an open loop: requests arrive at random times, below and beyond a server's capacity."""

from dataclasses import dataclass
from functools import partial

from bench.loads.raw_calls import open_loop
from bench.loads.traces import Trace
from bench.measure import DEADLINE_S, Fleet, Measurement, ServerSetup, measure, median
from bench.run_sizes import RunSizes
from bench.studies.throughput import ServerThroughput, Throughput
from testbed.server_process import RunningServer

# Loads are shares of Headwaiter's capacity, which is its throughput in the closed loop.
COMPARED = 0.7
BELOW_CAPACITY = (0.5, COMPARED, 0.9)
OVERLOAD = (1.2, 2.0)


@dataclass(frozen=True)
class ServerAtLoad:
    """One server at one load.

    Attributes:
        setup: the server and its setting.
        load: requests per second / Headwaiter's capacity.
        rounds: one measurement per round.
    """

    setup: ServerSetup
    load: float
    rounds: list[Measurement]


@dataclass(frozen=True)
class OpenLoop:
    """All servers on one trace.

    Attributes:
        trace: name of the trace.
        capacity_per_s: requests per second of Headwaiter in the closed loop.
        capacity_tokens_per_s: tokens per second of Headwaiter in the closed loop.
        servers: each server at each load below its own throughput, and Headwaiter beyond it; Headwaiter first.
    """

    trace: str
    capacity_per_s: float
    capacity_tokens_per_s: float
    servers: list[ServerAtLoad]


def open_loops(trace: Trace, closed: Throughput, fleet: Fleet, sizes: RunSizes, *, overload: bool) -> OpenLoop:
    """Measure every server below Headwaiter's capacity without deadlines, and Headwaiter beyond it with deadlines."""
    capacity = median(closed.headwaiter.rounds)
    loads = {server.setup: _loads_below_own_throughput(server, capacity.requests_per_s) for server in closed.servers}
    rounds: dict[tuple[ServerSetup, float], list[Measurement]] = {}
    for seed in range(sizes.rounds):
        fleet.stop_all()
        for setup, below_own_throughput in loads.items():
            for load in below_own_throughput:
                # One round is enough for loads at which no targets compare servers.
                if seed == 0 or load == COMPARED:
                    seconds = sizes.compared_s if load == COMPARED else sizes.open_s
                    measured = _measure(fleet[setup], trace, load * capacity.requests_per_s, seconds, seed)
                    rounds.setdefault((setup, load), []).append(measured)
    headwaiter = closed.headwaiter.setup
    for load in OVERLOAD if overload else ():
        rate_per_s = load * capacity.requests_per_s
        rounds[headwaiter, load] = [_measure(fleet[headwaiter], trace, rate_per_s, sizes.overload_s, 0, DEADLINE_S)]
    servers = [ServerAtLoad(setup, load, measured) for (setup, load), measured in rounds.items()]
    return OpenLoop(trace.name, capacity.requests_per_s, capacity.tokens_per_s, servers)


def _loads_below_own_throughput(server: ServerThroughput, capacity_per_s: float) -> list[float]:
    """Return the loads of a server; a setting that is not its family's best runs at the compared load only."""
    loads = BELOW_CAPACITY if server.best or not server.setup.policy else (COMPARED,)
    own_per_s = median(server.rounds).requests_per_s
    return [load for load in loads if load * capacity_per_s < own_per_s]


def _measure(
    server: RunningServer,
    trace: Trace,
    rate_per_s: float,
    duration_s: float,
    seed: int,
    deadline_s: float | None = None,
) -> Measurement:
    send_load = partial(
        open_loop,
        sequences=trace.sequences,
        rate_per_s=rate_per_s,
        duration_s=duration_s,
        deadline_s=deadline_s,
        seed=seed,
    )
    return measure(server, send_load)
