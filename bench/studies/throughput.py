"""Throughput in a closed loop: Headwaiter, the policies of other servers, and the upper limits of one core."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from bench.findings import Findings
from bench.loads.raw_calls import closed_loop
from bench.loads.traces import MEDIAN_30, MEDIAN_90, Trace
from bench.measure import HEADWAITER, Measurement, ServerSetup, measure, ratio, rounds_of
from bench.processes import SERVER_CORE, pin
from bench.rounds import Rounds
from bench.run import Run
from bench.studies.ceiling import floor_s, in_process_s
from bench.studies.in_process import Planner
from headwaiter_server.runtime.model import open_model
from testbed.minilm import bundle, checkpoint
from testbed.server_process import RunningServer

# The comparison runs with this number of requesters in each round, and once with each of `other_requesters`.
REQUESTERS = 32

PACKED, PORTABLE = "packed-cpu.fp32.onnx", "portable.fp32.onnx"


def _settings(name: str, graph: str, *policies: str) -> list[ServerSetup]:
    return [ServerSetup(name, policy, graph) for policy in policies]


# The policies of other servers: each at its usual setting, then at other settings to search for the fastest.
FAMILIES = (
    _settings("one by one, packed graph", PACKED, "one"),
    _settings("one by one, portable graph", PORTABLE, "one"),
    _settings("FIFO by count, padded", PORTABLE, "fifo:32:2", "fifo:2:0", "fifo:4:0", "fifo:8:0"),
    _settings("equal lengths", PORTABLE, "equal:32:0", "equal:8:0", "equal:32:2"),
    _settings("FIFO by tokens, padded", PORTABLE, "tokens:16384", "tokens:128", "tokens:256", "tokens:512"),
    _settings("sorted window, padded", PORTABLE, "sorted:32:8", "sorted:2:8", "sorted:4:8", "sorted:8:8"),
)
_USUAL = [family[0] for family in FAMILIES]
_ONE_PACKED, _ONE_PORTABLE, _FIFO_COUNT, _, _FIFO_TOKENS, _ = _USUAL
# Required ratio of Headwaiter's tokens per second to another server's, by trace.
MIN_RATIOS = {
    MEDIAN_30.name: {_FIFO_COUNT: 3.0, _FIFO_TOKENS: 1.5, _ONE_PACKED: 1.3, _ONE_PORTABLE: 1.5},
    MEDIAN_90.name: {_FIFO_COUNT: 3.0, _FIFO_TOKENS: 1.5, _ONE_PACKED: 1.0, _ONE_PORTABLE: 1.25},
}


@dataclass(frozen=True)
class ServerThroughput:
    """The throughput of one server: one measurement per round, and one for each other number of requesters.

    `best`: no other setting of its family was faster. `usual`: the setting is the family's usual one.
    """

    setup: ServerSetup
    best: bool
    usual: bool
    rounds: list[Measurement] = field(default_factory=list)
    other_requesters: dict[int, Measurement] = field(default_factory=dict)


@dataclass(frozen=True)
class Throughput:
    """The throughput of all servers on one trace, Headwaiter first.

    Each round also measures the tokens per CPU second of the matrix products alone, and the tokens per second without a
    server, with `REQUESTERS` sequences waiting and with the whole trace waiting.
    """

    trace: str
    servers: list[ServerThroughput]
    floor_tokens_per_cpu_s: Rounds = field(default_factory=Rounds)
    in_process_tokens_per_s: Rounds = field(default_factory=Rounds)
    whole_trace_tokens_per_s: Rounds = field(default_factory=Rounds)

    @property
    def headwaiter(self) -> ServerThroughput:
        """Throughput of Headwaiter."""
        return self.servers[0]


def throughput(run: Run) -> list[Throughput]:
    """Measure all servers on each trace."""
    measured, ceiling = [], _Ceiling()
    for trace in run.traces:
        closed = _throughput(trace, run, ceiling)
        if trace.name in MIN_RATIOS:
            _compare(closed, run.figures.findings.of_part(f"{trace.name}, {REQUESTERS} requesters"))
        measured.append(closed)
    return measured


def _throughput(trace: Trace, run: Run, ceiling: "_Ceiling") -> Throughput:
    """Find the fastest setting of each family, then measure all servers one after another in each round."""
    whole, short = trace.first(run.sizes.trace_tokens), trace.first(run.sizes.sweep_tokens)
    best = [_fastest(family, short, run) for family in FAMILIES]
    families = (setup for pair in zip(_USUAL, best, strict=True) for setup in pair)
    setups = list(dict.fromkeys([HEADWAITER, *families]))
    closed = Throughput(trace.name, [ServerThroughput(setup, setup in best, setup in _USUAL) for setup in setups])
    for _ in range(run.sizes.rounds):
        run.fleet.stop_all()
        for server in closed.servers:
            server.rounds.append(_measure(run.fleet[server.setup], whole, REQUESTERS))
        ceiling.measure(whole, closed)
    for requesters in run.sizes.other_requesters:
        for server in closed.servers:
            server.other_requesters[requesters] = _measure(run.fleet[server.setup], short, requesters)
    return closed


def _fastest(family: Sequence[ServerSetup], trace: Trace, run: Run) -> ServerSetup:
    if len(family) == 1:
        return family[0]
    return max(family, key=lambda setup: _measure(run.fleet[setup], trace, REQUESTERS).tokens_per_s)


def _measure(server: RunningServer, trace: Trace, requesters: int) -> Measurement:
    return measure(server, partial(closed_loop, sequences=trace.sequences, requesters=requesters))


class _Ceiling:
    """Measures the rates that this process reaches on the servers' core."""

    def __init__(self) -> None:
        pin(SERVER_CORE)
        self._model = open_model(bundle(), "cpu", "fp32", threads=1)
        self._planner = Planner(self._model)
        self._d_ff = json.loads((checkpoint() / "config.json").read_text())["intermediate_size"]

    def measure(self, trace: Trace, closed: Throughput) -> None:
        pin(SERVER_CORE)
        sequences, tokens, graph = trace.sequences, trace.tokens, self._model.graph
        products_s = floor_s(sequences, self._model.bundle.manifest, self._d_ff, self._planner.limits.tokens)
        waiting_s = in_process_s(sequences, REQUESTERS, graph, self._planner)
        whole_trace_s = in_process_s(sequences, len(sequences), graph, self._planner)
        closed.floor_tokens_per_cpu_s.append(tokens / products_s)
        closed.in_process_tokens_per_s.append(tokens / waiting_s)
        closed.whole_trace_tokens_per_s.append(tokens / whole_trace_s)


def _compare(closed: Throughput, findings: Findings) -> None:
    ours = closed.headwaiter.rounds
    ratios = {server.setup: ratio(ours, server.rounds, "tokens_per_s") for server in closed.servers[1:]}
    for setup, bound in MIN_RATIOS[closed.trace].items():
        findings.require(f'tokens/s: Headwaiter / the policy "{setup.label}"', ratios[setup], "≥", bound)
    fastest = min((server.setup for server in closed.servers if server.best), key=lambda setup: float(ratios[setup]))
    name = f'tokens/s: Headwaiter / the fastest policy ("{fastest.label}")'
    findings.require(name, ratios[fastest], ">", 1.0)
    in_process = rounds_of(ours, "tokens_per_s") / closed.in_process_tokens_per_s
    name = f"tokens/s: Headwaiter / in process, with {REQUESTERS} sequences waiting"
    findings.require(name, in_process, "≥", 0.9)
    floor = rounds_of(ours, "tokens_per_cpu_s") / closed.floor_tokens_per_cpu_s
    findings.require("tokens per CPU second: Headwaiter / matrix products alone", floor, "≥", 0.65)
    # If half of the batches are predicted within 20 %, the median error is at most 20 %.
    predicted = rounds_of(ours, "predicted")
    findings.require("share of batches whose duration was predicted within 20 %", predicted, "≥", 0.5)
