"""Divide the time of a request among its stages: a pure function of the intervals in which the server worked on it."""

from collections.abc import Iterable

from headwaiter_server.scheduling.job import Interval


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
        covered += intervals
        before_s, covered_s = covered_s, _union_s(covered, request)
        # Sums of floating-point numbers may differ in the last bit.
        durations[stage] = max(0.0, covered_s - before_s)
    return {**durations, "queue": max(0.0, request.seconds - covered_s)}


def _union_s(intervals: list[Interval], bounds: Interval) -> float:
    """Sort intervals, and return the seconds within the bounds that some interval covers.

    An interval that ends before it starts covers no moment.
    """
    intervals.sort()
    union_s, (reached_s, last_s) = 0.0, bounds
    for start_s, end_s in intervals:
        # Comparisons, because calls of min and max would take most of the time.
        from_s = start_s if start_s > reached_s else reached_s
        until_s = end_s if end_s < last_s else last_s
        if from_s < until_s:
            union_s, reached_s = union_s + until_s - from_s, until_s
    return union_s
