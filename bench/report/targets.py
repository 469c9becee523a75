"""The targets that the figures are compared with."""

import operator
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.loads.traces import MEDIAN_30, MEDIAN_90
from bench.measure import Measurement, median, median_ratio, ratio
from bench.report.figures import Figures
from bench.studies.client import ClientStreaming
from bench.studies.failover import Failover
from bench.studies.front_end import FrontEnd
from bench.studies.open_loop import COMPARED, OVERLOAD, OpenLoop, ServerAtLoad
from bench.studies.overheads import MetricsCost, PoisonCost, SingleRequest
from bench.studies.planning_cost import PlanningCost
from bench.studies.throughput import FAMILIES, REQUESTERS, Throughput
from bench.studies.tokenizing import Tokenizing

_COMPARISONS = {"≥": operator.ge, "≤": operator.le, ">": operator.gt, "<": operator.lt}
_ONE_PACKED, _ONE_PORTABLE, _FIFO_COUNT, _, _FIFO_TOKENS, _ = (family.usual for family in FAMILIES)
# Least ratio of tokens per second, Headwaiter / other server, by trace.
_MIN_RATIOS = {
    MEDIAN_30.name: {_FIFO_COUNT: 3.0, _FIFO_TOKENS: 1.5, _ONE_PACKED: 1.3, _ONE_PORTABLE: 1.5},
    MEDIAN_90.name: {_FIFO_COUNT: 3.0, _FIFO_TOKENS: 1.5, _ONE_PACKED: 1.0, _ONE_PORTABLE: 1.25},
}


@dataclass(frozen=True)
class Target:
    """One figure and its bound.

    Attributes:
        figure: name of the figure, with its unit.
        measured: the figure.
        sign: "≥", "≤", "<" or ">".
        bound: the bound.
        study: the study that measured the figure, and its load.
    """

    figure: str
    measured: float
    sign: str
    bound: float
    study: str = ""

    @property
    def met(self) -> bool:
        """Whether the figure keeps the bound."""
        return bool(_COMPARISONS[self.sign](self.measured, self.bound))


def targets(figures: Figures) -> Iterator[Target]:
    """Yield the targets of all studies that ran."""
    for closed in figures.throughput:
        yield from _throughput(closed)
    for loop in figures.open_loops:
        yield from _open_loop(loop)
    yield from _overheads(figures.single_request, figures.metrics, figures.poison)
    yield from _front_end(figures.front_end)
    yield from _client(figures.client, figures.failover)
    yield from _planning(figures.planning)
    yield from _tokenizing(figures.tokenizing)


def sustained(server: ServerAtLoad) -> bool:
    """Return whether a server answered at least 95 % of the requests while requests were still being sent."""
    return median(server.rounds).kept_up >= 0.95


def _throughput(closed: Throughput) -> Iterator[Target]:
    if closed.trace not in _MIN_RATIOS:
        return
    ours, study = closed.headwaiter.rounds, f"{closed.trace}, {REQUESTERS} requesters"
    others = {server.setup: server for server in closed.servers[1:]}
    for setup, bound in _MIN_RATIOS[closed.trace].items():
        measured = ratio(ours, others[setup].rounds, "tokens_per_s")
        yield Target(f"tokens/s: Headwaiter / {setup.label}", measured, "≥", bound, study)
    tuned = {
        server.setup.label: ratio(ours, server.rounds, "tokens_per_s") for server in others.values() if server.best
    }
    fastest = min(tuned, key=lambda label: tuned[label])
    yield Target(f"tokens/s: Headwaiter / fastest tuned policy, {fastest}", tuned[fastest], ">", 1.0, study)
    in_process = median_ratio([each.tokens_per_s for each in ours], closed.in_process_tokens_per_s)
    yield Target(f"tokens/s: Headwaiter / in process, {REQUESTERS} waiting", in_process, "≥", 0.9, study)
    floor = median_ratio([each.tokens_per_cpu_s for each in ours], closed.floor_tokens_per_cpu_s)
    yield Target("tokens per CPU second: Headwaiter / floor", floor, "≥", 0.65, study)
    # The median error is within 20 % if it is within 20 % for half of the batches.
    predicted = statistics.median(each.predicted for each in ours)
    yield Target("share of batches whose seconds were predicted within 20 %", predicted, "≥", 0.5, study)


def _open_loop(loop: OpenLoop) -> Iterator[Target]:
    headwaiter = loop.servers[0].setup
    compared = {server.setup: server for server in loop.servers if server.load == COMPARED}
    ours = compared.pop(headwaiter).rounds
    baselines = [server for server in compared.values() if sustained(server)]
    study = f"{loop.trace}, {COMPARED:.0%} load"
    for name, figure, sign in (("p99_ms", "p99", "≤"), ("short_p99_ms", "p99 of the shortest quarter", "<")):
        ratios = {server.setup.label: ratio(ours, server.rounds, name) for server in baselines}
        if ratios:
            lowest = max(ratios, key=lambda label: ratios[label])
            yield Target(f"{figure}: Headwaiter / lowest baseline, {lowest}", ratios[lowest], sign, 1.0, study)
    spread = statistics.median(each.short_p99_ms / each.short_p50_ms for each in ours)
    yield Target("shortest quarter: p99 / p50", spread, "≤", 4.0, study)
    for server in loop.servers:
        if server.load in OVERLOAD:
            yield from _overload(median(server.rounds), loop, f"{loop.trace}, {server.load:.0%} load, 500 ms deadlines")


def _overload(figures: Measurement, loop: OpenLoop, study: str) -> Iterator[Target]:
    requests = figures.goodput_per_s / loop.capacity_per_s
    tokens = figures.goodput_tokens_per_s / loop.capacity_tokens_per_s
    yield Target("requests/s: goodput / capacity", requests, "≥", 0.95, study)
    yield Target("tokens/s: goodput / capacity", tokens, "≥", 0.95, study)
    yield Target("p99 of refusals, ms", figures.refused_p99_ms, "<", 10.0, study)
    yield Target("answers after their deadline", figures.late_answers, "≤", 0.0, study)
    yield Target("share of run sequences without an answer in time", figures.wasted_sequences, "≤", 0.0, study)


def _overheads(
    single: SingleRequest | None, metrics: MetricsCost | None, poison: PoisonCost | None
) -> Iterator[Target]:
    if single:
        added_ms, by_minimal_ms = (
            statistics.median(single.added_ms),
            statistics.median(single.added_by_minimal_server_ms),
        )
        figure = f"p50 added to session.run, ms (a minimal server adds {by_minimal_ms:.2f})"
        yield Target(figure, added_ms, "≤", 1.0, "one requester")
    if metrics:
        yield Target("tokens/s: metrics on / off", metrics.throughput, "≥", 0.98, "metrics")
        yield Target("tokens per CPU second: metrics on / off", metrics.cpu, "≥", 0.98, "metrics")
    if poison:
        study = f"ten poisoned sequences per second for {poison.seconds:.0f} s"
        yield Target("tokens/s of the others: with / without poison", poison.throughput, ">", 0.9, study)
        yield Target("poisoned sequences: failed / sent", poison.failed_poison, "≥", 0.95, study)
        yield Target("others without an answer", poison.failed_others, "≤", 0.0, study)


def _front_end(front: FrontEnd | None) -> Iterator[Target]:
    if front is None:
        return
    one, many, _ = front.costs
    study = "front end, null model"
    yield Target("requests/s, one sequence each: Headwaiter / echo server", one.ratio, "≥", 0.5, study)
    sequences = median_ratio(many.requests_per_s, one.requests_per_s) * many.sequences
    yield Target(f"sequences/s: {many.sequences} per request / 1 per request", sequences, "≥", 10.0, study)
    unread, abandoned = front.unread_stream, front.abandoned
    study = "a stream that is not read, null model"
    p99_ratio = statistics.median(unread.p99_ratios)
    yield Target("p99 of other callers: meanwhile / before and after", p99_ratio, "≤", 1.1, study)
    yield Target("memory that the server holds, MiB", unread.held_mib, "≤", 128.0, study)
    yield Target("once the caller reads again: answers / requests", unread.answered / unread.sent, "≥", 1.0, study)
    study = "requests that are given up, null model"
    yield Target("out of the queue after a cancellation, ms", abandoned.cancelled_ms, "≤", 50.0, study)
    yield Target("out of the queue after a deadline, ms", abandoned.deadline_ms, "≤", 50.0, study)
    yield Target("sequences that ran", abandoned.sequences_run, "≤", 0.0, study)


def _client(streaming: ClientStreaming | None, failover: Failover | None) -> Iterator[Target]:
    if streaming:
        short = streaming.short
        study = f"{short.texts:,} short texts through encode_stream, null model"
        yield Target("peak memory of the client, MiB", short.peak_mib, "<", 200.0, study)
        yield Target("results missing, out of order or of another text", short.wrong, "≤", 0.0, study)
        study = f"{streaming.sentences:,} sentences"
        yield Target("texts/s: encode_stream / raw requests", streaming.ratio, "≥", 0.9, study)
    if failover:
        study = f"three replicas, one killed, one drained, {failover.calls:,} calls in {failover.seconds:.0f} s"
        yield Target("calls that failed", failover.failed, "≤", 0.0, study)
        yield Target("calls with wrong vectors", failover.wrong, "≤", 0.0, study)
        yield Target("replicas that answer at the end", failover.answering, "≥", 3.0, study)


def _planning(costs: Sequence[PlanningCost]) -> Iterator[Target]:
    for cost in costs:
        yield Target(
            "CPU time to plan, µs per sequence", cost.plan_us, "≤", 10.0, f"{cost.waiting:,} sequences waiting"
        )


def _tokenizing(measured: Sequence[Tokenizing]) -> Iterator[Target]:
    for each in measured:
        yield Target("tokens/s: tokenised / encoded", each.ratio, "≥", 5.0, f"texts per request: {each.texts}")
