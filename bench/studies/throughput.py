"""Throughput in a closed loop: Headwaiter, the policies of others, and what one core could do at most."""

import json
from dataclasses import dataclass, replace
from functools import partial

from bench.effort import Effort
from bench.loads.load import closed_loop
from bench.loads.traces import Trace
from bench.measure import HEADWAITER, SERVER_CORE, Contender, Fleet, Run, measure, median, pin
from bench.studies.ceiling import floor_s, in_process_s
from bench.studies.in_process import Planner
from headwaiter_server.runtime.model import open_model
from testbed.minilm import bundle, checkpoint
from testbed.server_process import RunningServer

# Where the others are compared, and everything is measured in every round.
REQUESTERS = 32
OTHER_REQUESTERS = (1, 8, 128)

PACKED, PORTABLE = "packed-cpu.fp32.onnx", "portable.fp32.onnx"


@dataclass(frozen=True)
class Family:
    """A policy of other servers: as it comes, and the settings among which the best is looked for."""

    usual: Contender
    settings: tuple[str, ...] = ()

    def contenders(self) -> list[Contender]:
        """Return it with every setting, the usual one first."""
        return [self.usual, *(replace(self.usual, policy=policy) for policy in self.settings)]


FAMILIES = (
    Family(Contender("one by one, packed graph", "one", PACKED)),
    Family(Contender("one by one, portable graph", "one", PORTABLE)),
    Family(Contender("FIFO by count, padded", "fifo:32:2", PORTABLE), ("fifo:2:0", "fifo:4:0", "fifo:8:0")),
    Family(Contender("equal lengths", "equal:32:0", PORTABLE), ("equal:8:0", "equal:32:2")),
    Family(Contender("FIFO by tokens, padded", "tokens:16384", PORTABLE), ("tokens:128", "tokens:256", "tokens:512")),
    Family(Contender("sorted window, padded", "sorted:32:8", PORTABLE), ("sorted:2:8", "sorted:4:8", "sorted:8:8")),
)


@dataclass(frozen=True)
class Served:
    """One server's runs.

    Attributes:
        contender: the server.
        best: whether no other setting of its family was faster.
        usual: whether the setting is the one it comes with.
        runs: of every round, at the usual number of requesters.
        others: one run at each other number of requesters.
    """

    contender: Contender
    best: bool
    usual: bool
    runs: list[Run]
    others: dict[int, Run]


@dataclass(frozen=True)
class Throughput:
    """All servers on one trace; rates are tokens a second, one for each round.

    Attributes:
        trace: its name.
        floor: the matrix products alone, in tokens for each CPU-second.
        in_process: our planner and graph with as many sequences waiting as there are requesters.
        in_process_trace: with the whole trace waiting.
        served: Headwaiter first.
    """

    trace: str
    floor: list[float]
    in_process: list[float]
    in_process_trace: list[float]
    served: list[Served]

    @property
    def ours(self) -> Served:
        """Headwaiter."""
        return self.served[0]

    @property
    def capacity_s(self) -> float:
        """Requests a second that Headwaiter answers."""
        return median(self.ours.runs).requests_s


def throughput(trace: Trace, fleet: Fleet, effort: Effort) -> Throughput:
    """Find every family's best setting, then measure all servers in turn, round by round."""
    whole, short = trace.first(effort.trace_tokens), trace.first(effort.sweep_tokens)
    best = [_best(family, short, fleet) for family in FAMILIES]
    contenders = dict.fromkeys(
        [HEADWAITER, *(each for family, found in zip(FAMILIES, best, strict=True) for each in (family.usual, found))]
    )
    ceiling = _Ceiling(whole)
    runs: dict[Contender, list[Run]] = {contender: [] for contender in contenders}
    others: dict[Contender, dict[int, Run]] = {contender: {} for contender in contenders}
    for _ in range(effort.rounds):
        fleet.renew()
        for contender in contenders:
            runs[contender].append(_run(fleet[contender], whole, REQUESTERS))
        ceiling.measure()
    for requesters in OTHER_REQUESTERS if effort.all_requesters else ():
        for contender in contenders:
            others[contender][requesters] = _run(fleet[contender], short, requesters)
    usual = {family.usual for family in FAMILIES}
    served = [
        Served(contender, contender in best, contender in usual, runs[contender], others[contender])
        for contender in contenders
    ]
    return Throughput(trace.name, ceiling.floor, ceiling.in_process, ceiling.in_process_trace, served)


def _best(family: Family, trace: Trace, fleet: Fleet) -> Contender:
    """Return the fastest setting, each tried once."""
    if not family.settings:
        return family.usual
    rates = {contender: _run(fleet[contender], trace, REQUESTERS).tokens_s for contender in family.contenders()}
    return max(rates, key=lambda contender: rates[contender])


def _run(server: RunningServer, trace: Trace, requesters: int) -> Run:
    return measure(server, partial(closed_loop, sequences=trace.sequences, requesters=requesters))


class _Ceiling:
    """What runs in this process, on the servers' core."""

    def __init__(self, trace: Trace) -> None:
        pin(SERVER_CORE)
        self.floor: list[float] = []
        self.in_process: list[float] = []
        self.in_process_trace: list[float] = []
        self._trace = trace
        self._model = open_model(bundle(), "cpu", "fp32", threads=1)
        self._planner = Planner(self._model)
        self._d_ff = json.loads((checkpoint() / "config.json").read_text())["intermediate_size"]

    def measure(self) -> None:
        """Take one round."""
        pin(SERVER_CORE)
        sequences, tokens = self._trace.sequences, self._trace.tokens
        products_s = floor_s(sequences, self._model.bundle.manifest, self._d_ff, self._planner.limits.tokens)
        window_s = in_process_s(sequences, REQUESTERS, self._model.graph, self._planner)
        whole_s = in_process_s(sequences, len(sequences), self._model.graph, self._planner)
        self.floor.append(tokens / products_s)
        self.in_process.append(tokens / window_s)
        self.in_process_trace.append(tokens / whole_s)
