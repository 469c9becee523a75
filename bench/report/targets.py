"""What the figures have to be, and what they are."""

import statistics
from collections.abc import Iterator, Sequence

from bench.loads.traces import MEDIAN_30, MEDIAN_90
from bench.measure import Run, median, median_ratio, ratio
from bench.requirement import Requirement
from bench.studies.client import Streaming
from bench.studies.failover import Failover
from bench.studies.front_end import FrontEnd
from bench.studies.open_loop import COMPARED, OVERLOAD, Loaded, OpenLoop
from bench.studies.overheads import Alone, Metrics, Poison
from bench.studies.planning_cost import Planning
from bench.studies.throughput import FAMILIES, REQUESTERS, Throughput
from bench.studies.tokenizing import Tokenizing

_ALONE_PACKED, _ALONE_PORTABLE, _FIFO_COUNT, _, _FIFO_TOKENS, _ = (family.usual for family in FAMILIES)
# At least so many times as fast, by trace.
_TIMES_FASTER = {
    MEDIAN_30.name: {_FIFO_COUNT: 3.0, _FIFO_TOKENS: 1.5, _ALONE_PACKED: 1.3, _ALONE_PORTABLE: 1.5},
    MEDIAN_90.name: {_FIFO_COUNT: 3.0, _FIFO_TOKENS: 1.5, _ALONE_PACKED: 1.0, _ALONE_PORTABLE: 1.25},
}


def of_throughput(closed: Throughput) -> Iterator[Requirement]:
    """Yield what is asked of the closed loop; of a trace that nothing is asked of, nothing."""
    if closed.trace not in _TIMES_FASTER:
        return
    ours, at = closed.ours.runs, f"{closed.trace}, {REQUESTERS} requesters"
    others = {served.contender: served for served in closed.served[1:]}
    for contender, bound in _TIMES_FASTER[closed.trace].items():
        faster = ratio(ours, others[contender].runs, "tokens_s")
        yield Requirement(f"{at}: throughput by {contender.label}", faster, "≥", bound)
    by_best = {each.contender.label: ratio(ours, each.runs, "tokens_s") for each in others.values() if each.best}
    nearest = min(by_best, key=lambda label: by_best[label])
    yield Requirement(f"{at}: by the fastest at its best, {nearest}", by_best[nearest], ">", 1.0)
    rates = [run.tokens_s for run in ours]
    yield Requirement(f"{at}: by in process with a window of 32", median_ratio(rates, closed.in_process), "≥", 0.9)
    cpu = [run.tokens_cpu_s for run in ours]
    yield Requirement(f"{at}: tokens per CPU-second by the floor", median_ratio(cpu, closed.floor), "≥", 0.65)
    # The median error is within 20 % where half of the batches are.
    predicted = statistics.median(run.predicted for run in ours)
    yield Requirement(f"{at}: share of batches whose time was predicted within 20 %", predicted, "≥", 0.5)


def of_open_loop(loop: OpenLoop) -> Iterator[Requirement]:
    """Yield what is asked of the open loop."""
    ours = loop.loaded[0].contender
    compared = {each.contender: each for each in loop.loaded if each.load == COMPARED}
    own = compared.pop(ours)
    kept_up = [each for each in compared.values() if sustained(each)]
    at = f"{loop.trace}, {COMPARED:.0%} load"
    for figure, what in (("p99_ms", "p99"), ("short_p99_ms", "p99 of the shortest quarter")):
        against = {each.contender.label: ratio(own.runs, each.runs, figure) for each in kept_up}
        if against:
            worst = max(against, key=lambda label: against[label])
            sign = "≤" if figure == "p99_ms" else "<"
            yield Requirement(f"{at}: {what} by the lowest baseline's, {worst}", against[worst], sign, 1.0)
    own_ratio = statistics.median(run.short_p99_ms / run.short_p50_ms for run in own.runs)
    yield Requirement(f"{at}: p99 of the shortest quarter by its own p50", own_ratio, "≤", 4.0)
    for each in loop.loaded:
        if each.load in OVERLOAD:
            yield from _of_overload(median(each.runs), loop, f"{loop.trace}, {each.load:.0%} load, 500 ms deadlines")


def _of_overload(run: Run, loop: OpenLoop, at: str) -> Iterator[Requirement]:
    yield Requirement(f"{at}: goodput by capacity, requests", run.goodput_s / loop.capacity_s, "≥", 0.95)
    yield Requirement(f"{at}: goodput by capacity, tokens", run.goodput_tokens_s / loop.capacity_tokens_s, "≥", 0.95)
    yield Requirement(f"{at}: refusals' p99, ms", run.refused_p99_ms, "<", 10.0)
    yield Requirement(f"{at}: answers after their deadline", run.too_late, "≤", 0.0)
    yield Requirement(f"{at}: share of what ran that was not in time", run.in_vain, "≤", 0.0)


def of_overheads(alone: Alone | None, metrics: Metrics | None, poison: Poison | None) -> Iterator[Requirement]:
    """Yield what is asked of one lonely request, and of the cost of metrics and of poison."""
    if alone:
        added_ms = statistics.median(alone.added_ms)
        least_ms = statistics.median(alone.least_ms)
        what = f"one requester: p50 over bare session.run, ms ({least_ms:.2f} for a server that only runs it)"
        yield Requirement(what, added_ms, "≤", 1.0)
    if metrics:
        yield Requirement("metrics on by off: throughput", metrics.throughput, "≥", 0.98)
        yield Requirement("metrics on by off: tokens per CPU-second", metrics.cpu, "≥", 0.98)
    if poison:
        at = f"ten poisoned sequences a second for {poison.seconds:.0f} s"
        yield Requirement(f"{at}: throughput of the others by without", poison.throughput, ">", 0.9)
        yield Requirement(f"{at}: share of them that failed", poison.blamed, "≥", 0.95)
        yield Requirement(f"{at}: others without an answer", poison.failed, "≤", 0.0)


def of_front_end(front: FrontEnd | None) -> Iterator[Requirement]:
    """Yield what is asked of the front end."""
    if front is None:
        return
    one, many, _ = front.costs
    yield Requirement("unary of 1, null model: requests/s by an echo server's", one.ratio, "≥", 0.5)
    sequences = median_ratio(many.ours_s, one.ours_s) * many.sequences
    yield Requirement(f"null model: sequences/s, unary of {many.sequences} by unary of 1", sequences, "≥", 10.0)
    stall, given_up = front.stall, front.given_up
    yield Requirement("others' p99 beside a stream that nobody reads", statistics.median(stall.p99), "≤", 1.1)
    yield Requirement("memory that it takes, MiB", stall.held_mib, "≤", 128.0)
    yield Requirement("its answers once it is read, by its requests", stall.answered / stall.sent, "≥", 1.0)
    yield Requirement("cancellation seen after, ms", given_up.cancelled_ms, "≤", 50.0)
    yield Requirement("deadline seen after, ms", given_up.late_ms, "≤", 50.0)
    yield Requirement("sequences run though given up", given_up.run, "≤", 0.0)


def of_client(streaming: Streaming | None, failover: Failover | None) -> Iterator[Requirement]:
    """Yield what is asked of our own client."""
    if streaming:
        short = streaming.short
        at = f"{short.texts:,} short texts through encode_stream, null model"
        yield Requirement(f"{at}: peak memory of the client, MiB", short.peak_mib, "<", 200.0)
        yield Requirement(f"{at}: results that are missing, out of order or of another text", short.wrong, "≤", 0.0)
        what = f"{streaming.sentences:,} sentences through encode_stream: throughput by raw requests'"
        yield Requirement(what, streaming.ratio, "≥", 0.9)
    if failover:
        at = f"three replicas, one killed, one drained, {failover.calls:,} calls in {failover.seconds:.0f} s"
        yield Requirement(f"{at}: failed", failover.failed, "≤", 0.0)
        yield Requirement(f"{at}: answered wrongly", failover.wrong, "≤", 0.0)
        yield Requirement(f"{at}: replicas that answer again", failover.answering, "≥", 3.0)


def of_planning(rows: Sequence[Planning]) -> Iterator[Requirement]:
    """Yield what is asked of the planner."""
    for row in rows:
        yield Requirement(f"planning with {row.pending:,} waiting, µs a sequence", row.plan_us, "≤", 10.0)


def of_tokenizing(rows: Sequence[Tokenizing]) -> Iterator[Requirement]:
    """Yield what is asked of the tokeniser."""
    for row in rows:
        yield Requirement(f"tokenised by encoded, {row.texts} texts a request", row.ratio, "≥", 5.0)


def sustained(loaded: Loaded) -> bool:
    """Tell whether a server answered as fast as requests came."""
    return median(loaded.runs).kept_up >= 0.95
