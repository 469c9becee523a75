"""Divide the time of a request among its stages: a pure function of the intervals in which the server worked on it."""

from collections.abc import Iterable
from itertools import chain

from headwaiter_server.scheduling.queued_request import Interval


def stage_durations(
    request: Interval,
    tokenizing: Interval,
    packing: Iterable[Interval],
    runs: Iterable[Interval],
    responding: Interval,
) -> dict[str, float]:
    """Return the seconds of each stage; they are never negative, and add up to the length of `request`.

    Batches of one request may run and be packed at the same time, so each moment of the request counts for one stage
    only: for the first of compute, assemble, tokenize and respond that covers the moment, else for the queue.

    Args:
        request: from the arrival of the request until its reply was ready.
        tokenizing: the time to read and tokenise the request.
        packing: the packing of each of the request's batches.
        runs: the run of each of these batches.
        responding: from the last result until the reply was ready.
    """
    stages = (("compute", runs), ("assemble", packing), ("tokenize", [tokenizing]), ("respond", [responding]))
    durations: dict[str, float] = {}
    covered: list[Interval] = []
    covered_s = 0.0
    for stage, intervals in stages:
        covered = _union(chain(covered, (_clip(interval, request) for interval in intervals)))
        before_s, covered_s = covered_s, sum(interval.seconds for interval in covered)
        # Sums of floating-point numbers may differ in the last bit.
        durations[stage] = max(0.0, covered_s - before_s)
    return {**durations, "queue": max(0.0, request.seconds - covered_s)}


def _clip(interval: Interval, bounds: Interval) -> Interval:
    return Interval(max(interval.start_s, bounds.start_s), min(interval.end_s, bounds.end_s))


def _union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the moments that some interval covers, as separate intervals.

    An interval that ends before it starts covers no moment.
    """
    separate: list[Interval] = []
    for interval in sorted(interval for interval in intervals if interval.start_s < interval.end_s):
        if separate and interval.start_s <= separate[-1].end_s:
            separate[-1] = Interval(separate[-1].start_s, max(separate[-1].end_s, interval.end_s))
        else:
            separate.append(interval)
    return separate
