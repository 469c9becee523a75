"""Throughput in a closed loop: Headwaiter, the policies of other servers, and the most that one core can do."""

import json
from dataclasses import dataclass, replace
from functools import partial

from bench.loads.raw_calls import closed_loop
from bench.loads.traces import Trace
from bench.measure import HEADWAITER, Fleet, Measurement, ServerSetup, measure
from bench.processes import SERVER_CORE, pin
from bench.run_sizes import RunSizes
from bench.studies.ceiling import floor_s, in_process_s
from bench.studies.in_process import Planner
from headwaiter_server.runtime.model import open_model
from testbed.minilm import bundle, checkpoint
from testbed.server_process import RunningServer

# The comparison runs with this number of requesters in each round, and once with each of the others.
REQUESTERS = 32
OTHER_REQUESTERS = (1, 8, 128)

PACKED, PORTABLE = "packed-cpu.fp32.onnx", "portable.fp32.onnx"


@dataclass(frozen=True)
class PolicyFamily:
    """A policy of another server with its usual setting, and other settings to search for the fastest."""

    usual: ServerSetup
    other_settings: tuple[str, ...] = ()

    def setups(self) -> list[ServerSetup]:
        """Return one setup per setting, the usual one first."""
        return [self.usual, *(replace(self.usual, policy=policy) for policy in self.other_settings)]


FAMILIES = (
    PolicyFamily(ServerSetup("one by one, packed graph", "one", PACKED)),
    PolicyFamily(ServerSetup("one by one, portable graph", "one", PORTABLE)),
    PolicyFamily(ServerSetup("FIFO by count, padded", "fifo:32:2", PORTABLE), ("fifo:2:0", "fifo:4:0", "fifo:8:0")),
    PolicyFamily(ServerSetup("equal lengths", "equal:32:0", PORTABLE), ("equal:8:0", "equal:32:2")),
    PolicyFamily(
        ServerSetup("FIFO by tokens, padded", "tokens:16384", PORTABLE), ("tokens:128", "tokens:256", "tokens:512")
    ),
    PolicyFamily(
        ServerSetup("sorted window, padded", "sorted:32:8", PORTABLE), ("sorted:2:8", "sorted:4:8", "sorted:8:8")
    ),
)


@dataclass(frozen=True)
class ServerThroughput:
    """The throughput of one server.

    Attributes:
        setup: the server and its setting.
        best: whether no other setting of its family was faster.
        usual: whether the setting is the family's usual one.
        rounds: one measurement per round, with `REQUESTERS` requesters.
        other_requesters: one measurement for each other number of requesters.
    """

    setup: ServerSetup
    best: bool
    usual: bool
    rounds: list[Measurement]
    other_requesters: dict[int, Measurement]


@dataclass(frozen=True)
class Throughput:
    """The throughput of all servers on one trace; the lists hold one rate per round.

    Attributes:
        trace: name of the trace.
        floor_tokens_per_cpu_s: tokens per CPU second of the matrix products alone.
        in_process_tokens_per_s: tokens per second without a server, with `REQUESTERS` sequences waiting.
        whole_trace_tokens_per_s: tokens per second without a server, with the whole trace waiting.
        servers: throughput of each server, Headwaiter first.
    """

    trace: str
    floor_tokens_per_cpu_s: list[float]
    in_process_tokens_per_s: list[float]
    whole_trace_tokens_per_s: list[float]
    servers: list[ServerThroughput]

    @property
    def headwaiter(self) -> ServerThroughput:
        """Throughput of Headwaiter."""
        return self.servers[0]


def throughput(trace: Trace, fleet: Fleet, sizes: RunSizes) -> Throughput:
    """Search the fastest setting of each family, then measure all servers in turn in each round."""
    whole, short = trace.first(sizes.trace_tokens), trace.first(sizes.sweep_tokens)
    best = [_fastest(family, short, fleet) for family in FAMILIES]
    setups = dict.fromkeys(
        [
            HEADWAITER,
            *(setup for family, fastest in zip(FAMILIES, best, strict=True) for setup in (family.usual, fastest)),
        ]
    )
    ceiling = _Ceiling(whole)
    rounds: dict[ServerSetup, list[Measurement]] = {setup: [] for setup in setups}
    others: dict[ServerSetup, dict[int, Measurement]] = {setup: {} for setup in setups}
    for _ in range(sizes.rounds):
        fleet.stop_all()
        for setup in setups:
            rounds[setup].append(_measure(fleet[setup], whole, REQUESTERS))
        ceiling.measure()
    for requesters in OTHER_REQUESTERS if sizes.all_requesters else ():
        for setup in setups:
            others[setup][requesters] = _measure(fleet[setup], short, requesters)
    usual = {family.usual for family in FAMILIES}
    servers = [ServerThroughput(setup, setup in best, setup in usual, rounds[setup], others[setup]) for setup in setups]
    return Throughput(trace.name, ceiling.floor, ceiling.in_process, ceiling.whole_trace, servers)


def _fastest(family: PolicyFamily, trace: Trace, fleet: Fleet) -> ServerSetup:
    """Return the fastest setting of a family, after one run of each."""
    if not family.other_settings:
        return family.usual
    return max(family.setups(), key=lambda setup: _measure(fleet[setup], trace, REQUESTERS).tokens_per_s)


def _measure(server: RunningServer, trace: Trace, requesters: int) -> Measurement:
    return measure(server, partial(closed_loop, sequences=trace.sequences, requesters=requesters))


class _Ceiling:
    """The rates that this process reaches on the servers' core, one per round."""

    def __init__(self, trace: Trace) -> None:
        pin(SERVER_CORE)
        self.floor: list[float] = []
        self.in_process: list[float] = []
        self.whole_trace: list[float] = []
        self._trace = trace
        self._model = open_model(bundle(), "cpu", "fp32", threads=1)
        self._planner = Planner(self._model)
        self._feed_forward_width = json.loads((checkpoint() / "config.json").read_text())["intermediate_size"]

    def measure(self) -> None:
        """Measure one round."""
        pin(SERVER_CORE)
        sequences, tokens = self._trace.sequences, self._trace.tokens
        manifest, graph = self._model.bundle.manifest, self._model.graph
        products_s = floor_s(sequences, manifest, self._feed_forward_width, self._planner.limits.tokens)
        self.floor.append(tokens / products_s)
        self.in_process.append(tokens / in_process_s(sequences, REQUESTERS, graph, self._planner))
        self.whole_trace.append(tokens / in_process_s(sequences, len(sequences), graph, self._planner))
