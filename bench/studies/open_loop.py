"""Latency and goodput in an open loop: requests arrive at random times, below and beyond a server's capacity."""

from dataclasses import dataclass

from bench.findings import Findings
from bench.loads.raw_calls import open_loop
from bench.loads.traces import Trace
from bench.measure import DEADLINE_S, Measurement, ServerSetup, measure, median, ratio, rounds_of
from bench.run import Run
from bench.studies.throughput import ServerThroughput, Throughput

# Loads are shares of Headwaiter's capacity, which is its throughput in the closed loop.
COMPARED = 0.7
BELOW_CAPACITY = (0.5, COMPARED, 0.9)
OVERLOAD = (1.2, 2.0)


@dataclass(frozen=True)
class ServerAtLoad:
    """One server at one load, with one measurement per round; `load` is a share of Headwaiter's capacity."""

    setup: ServerSetup
    load: float
    rounds: list[Measurement]

    @property
    def sustained(self) -> bool:
        """Whether the server answered at least 95 % of the requests while requests were still being sent."""
        return median(self.rounds).kept_up >= 0.95


@dataclass(frozen=True)
class OpenLoop:
    """All servers on one trace: an entry for each server at each of its loads, Headwaiter first at each load."""

    trace: str
    capacity_per_s: float
    capacity_tokens_per_s: float
    servers: list[ServerAtLoad]


def open_loops(run: Run) -> list[OpenLoop]:
    """Measure open loops with the two log-normal traces; loads beyond capacity only with the first trace."""
    loops = []
    for trace, closed in list(zip(run.traces, run.figures.tables["throughput"], strict=True))[:2]:
        loop = _open_loop(trace, closed, run, overload=trace is run.traces[0])
        _compare(loop, run.figures.findings)
        loops.append(loop)
    return loops


def _open_loop(trace: Trace, closed: Throughput, run: Run, *, overload: bool) -> OpenLoop:
    """Measure all servers below Headwaiter's capacity without deadlines, and Headwaiter beyond it with deadlines."""
    capacity = median(closed.headwaiter.rounds)
    rounds: dict[tuple[ServerSetup, float], list[Measurement]] = {}

    def measure_at(load: float, setup: ServerSetup, seconds: float, seed: int, deadline_s: float | None = None) -> None:
        rate_per_s = load * capacity.requests_per_s
        measured = measure(
            run.fleet[setup],
            lambda address: open_loop(address, trace.sequences, rate_per_s, seconds, deadline_s, seed),
        )
        rounds.setdefault((setup, load), []).append(measured)

    for seed in range(run.sizes.rounds):
        run.fleet.stop_all()
        for server in closed.servers:
            for load in _loads_below_own_throughput(server, capacity.requests_per_s):
                if load == COMPARED:
                    measure_at(load, server.setup, run.sizes.compared_s, seed)
                elif seed == 0:
                    # One round is enough for loads at which no targets compare servers.
                    measure_at(load, server.setup, run.sizes.open_s, seed)
    for load in OVERLOAD if overload else ():
        measure_at(load, closed.headwaiter.setup, run.sizes.overload_s, 0, DEADLINE_S)
    servers = [ServerAtLoad(setup, load, measured) for (setup, load), measured in rounds.items()]
    return OpenLoop(trace.name, capacity.requests_per_s, capacity.tokens_per_s, servers)


def _loads_below_own_throughput(server: ServerThroughput, capacity_per_s: float) -> list[float]:
    """Return the loads of a server; a setting that is not the best of its family runs only at the compared load."""
    loads = BELOW_CAPACITY if server.best or not server.setup.policy else (COMPARED,)
    own_per_s = median(server.rounds).requests_per_s
    return [load for load in loads if load * capacity_per_s < own_per_s]


def _compare(loop: OpenLoop, findings: Findings) -> None:
    """Compare Headwaiter with the other servers at one load, and with its targets beyond capacity."""
    ours, *others = [server for server in loop.servers if server.load == COMPARED]
    baselines = [server for server in others if server.sustained]
    findings = findings.of_part(f"{loop.trace}, {COMPARED:.0%} load")
    for name, which, sign in (("p99_ms", "all requests", "≤"), ("short_p99_ms", "the shortest quarter", "<")):
        ratios = {server.setup.label: ratio(ours.rounds, server.rounds, name) for server in baselines}
        if ratios:
            lowest = max(ratios, key=lambda label: float(ratios[label]))
            figure = f'p99 of {which}: Headwaiter / the policy with the lowest p99 ("{lowest}")'
            findings.require(figure, ratios[lowest], sign, 1.0)
    spread = rounds_of(ours.rounds, "short_p99_ms") / rounds_of(ours.rounds, "short_p50_ms")
    findings.require("p99 / p50 of the shortest quarter", spread, "≤", 4.0)
    for server in loop.servers:
        if server.load in OVERLOAD:
            findings = findings.of_part(f"{loop.trace}, {server.load:.0%} load, 500 ms deadlines")
            measured = median(server.rounds)
            requests = measured.goodput_per_s / loop.capacity_per_s
            tokens = measured.goodput_tokens_per_s / loop.capacity_tokens_per_s
            findings.require("goodput / capacity, both in requests/s", requests, "≥", 0.95)
            findings.require("goodput / capacity, both in tokens/s", tokens, "≥", 0.95)
            findings.require("p99 of refusals, ms", measured.refused_p99_ms, "<", 10.0)
            findings.require("answers that reached the caller after their deadline", measured.late_answers, "≤", 0.0)
            wasted = measured.wasted_sequences
            findings.require("share of sequences that ran, but were not answered in time", wasted, "≤", 0.0)
