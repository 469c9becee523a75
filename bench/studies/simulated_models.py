"""Simulate the latency of a packed model beside a padded model on one device, with cost models in place of the device.

Run it with `python -m bench.studies.simulated_models`. The packed model has Poisson arrivals at half of its throughput.
The padded model takes half of the time for a sequence, its batches hold sequences of one length, and its load varies.
It prints p50 and p99 of the packed model, divided by those of the packed model alone. Unlike the figures of a server,
these have no noise, and do not depend on other programs of the machine. The last column is of a padded model whose
requests are bulk.
"""

from random import Random
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from bench.loads.traces import MEDIAN_30, MEDIAN_90, LogNormal
from bench.studies.simulated_latency import sequence_of
from headwaiter_server.scheduling.cost import BatchLimits, CostModel
from headwaiter_server.scheduling.fair_start import Priority
from headwaiter_server.scheduling.model_queue import ModelQueue
from headwaiter_server.scheduling.model_queues import ModelQueues
from headwaiter_server.scheduling.observer import Observer
from headwaiter_server.scheduling.planner import plan
from headwaiter_server.scheduling.worker import Session, Worker

# What the server measured of all-MiniLM-L6-v2 on one core of an Intel Xeon; the padded model takes half of it.
_PACKED = CostModel(launch_s=3.3e-3, token_s=1.2e-4, padded_s=1.8e-5, cell_s=2.1e-7)
_PADDED = CostModel(launch_s=1.65e-3, token_s=0.0, padded_s=6.9e-5, cell_s=1.05e-7)
_TOKENS, _CELLS = 512, 1_400_000
_PACKED_LOAD, _PADDED_LOADS = 0.5, (0.0, 0.05, 0.1, 0.2)
_RUN_S = 300.0
# A batch is planned this long before the batch before it ends.
_LEAD_S = 2e-3

_Arrivals = list[tuple[float, int]]


class _Device:
    device = "cpu"


_WORKER = cast("Worker", _Device())


def _queue(cost: CostModel, *, one_length: bool) -> ModelQueue:
    session, ignored = SimpleNamespace(), SimpleNamespace(device_ran=lambda *_: None)
    sessions: Any = {_WORKER: session}
    limits = BatchLimits(_TOKENS, _CELLS, one_length=one_length)
    return ModelQueue(cast("dict[Worker, Session]", sessions), cost, limits, cast("Observer", ignored))


def _arrivals(queue: ModelQueue, load: float, lengths: list[int], seed: int) -> _Arrivals:
    """Return times and lengths at a share of the throughput of the model alone with all sequences waiting."""
    cost, limits, seconds = queue.learnt.cost, queue.limits.current, 0.0
    for number, length in enumerate(lengths):
        queue.pending.add(sequence_of(length, number, 0.0, cost))
    while queue.pending:
        planned = plan(queue.pending, 0.0, cost, limits)
        seconds += planned.seconds
        for sequence in planned.batch:
            queue.pending.remove(sequence)
    random, arrivals, now_s = Random(seed), _Arrivals(), 0.0
    while load and (now_s := now_s + random.expovariate(load * len(lengths) / seconds)) < _RUN_S:
        arrivals.append((now_s, random.choice(lengths)))
    return arrivals


def _simulate(
    trace: LogNormal, padded_load: float, padded_priority: Priority = Priority.INTERACTIVE
) -> tuple[float, float, float]:
    """Return p50 and p99 of the packed model, and the share of the time in which the device was busy."""
    queues = ModelQueues()
    queues += [_queue(_PACKED, one_length=False), _queue(_PADDED, one_length=True)]
    lengths = [len(ids) for ids in trace.trace(2_000, vocabulary_size=10).sequences]
    loads = zip(queues, (_PACKED_LOAD, padded_load), (1, 2), strict=True)
    arrivals = sorted(
        (time_s, length, index)
        for index, (queue, load, seed) in enumerate(loads)
        for time_s, length in _arrivals(queue, load, lengths, seed)
    )[::-1]
    arrived_s: dict[int, float] = {}
    latencies_s, now_s, free_s, busy_s = [], 0.0, 0.0, 0.0
    while arrivals or any(queues.waiting):
        now_s = max(now_s, free_s - _LEAD_S, 0.0 if any(queues.waiting) else arrivals[-1][0])
        while arrivals and arrivals[-1][0] <= now_s:
            time_s, length, index = arrivals.pop()
            queue, number = queues[index], len(arrivals)
            queues.note_arrival(queue)
            arrived_s[number] = time_s
            priority = padded_priority if index else Priority.INTERACTIVE
            queue.pending.add(sequence_of(length, number, time_s, queue.learnt.cost, priority))
        queue = queues.next(_WORKER, now_s)
        planned = plan(queue.pending, now_s, queue.learnt.cost, queue.limits.current)
        queues.note_start(queue, now_s)
        queue.start_batch(planned.seconds)
        free_s = max(free_s, now_s) + planned.seconds
        busy_s += planned.seconds
        for sequence in planned.batch:
            queue.pending.remove(sequence)
            if queue is queues[0]:
                latencies_s.append(free_s - arrived_s[sequence.index])
    p50_s, p99_s = np.percentile(latencies_s, (50, 99))
    return float(p50_s), float(p99_s), busy_s / free_s


def main() -> None:
    """Print the figures."""
    print("| trace | load of the padded model | device busy | p50 / alone | p99 / alone | p99 / alone, bulk |")
    print("|---|---|---|---|---|---|")
    for trace in (MEDIAN_30, MEDIAN_90):
        alone_p50_s, alone_p99_s, _ = _simulate(trace, 0.0)
        for load in _PADDED_LOADS:
            p50_s, p99_s, busy = _simulate(trace, load)
            _, beside_bulk_s, _ = _simulate(trace, load, Priority.BULK)
            ratios = " | ".join(
                f"{ratio:.2f}" for ratio in (p50_s / alone_p50_s, p99_s / alone_p99_s, beside_bulk_s / alone_p99_s)
            )
            print(f"| {trace.name} | {load:.0%} | {busy:.0%} | {ratios} |", flush=True)


if __name__ == "__main__":
    main()
