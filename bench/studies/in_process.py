"""The planner without a server, for benchmarks and simulations that run in one process."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import count, islice
from typing import cast

import numpy as np
from numpy.typing import NDArray

from bench.loads.traces import Ids
from headwaiter_server.models.calibration import measure_cost
from headwaiter_server.runtime.graph import EncoderGraph
from headwaiter_server.runtime.model import Model
from headwaiter_server.runtime.packing import pack
from headwaiter_server.scheduling.cost import BatchLimits, CostModel
from headwaiter_server.scheduling.fair_start import Priority, fair_start_s
from headwaiter_server.scheduling.pending import Pending
from headwaiter_server.scheduling.planner import Plan, plan
from headwaiter_server.scheduling.queued_request import QueuedRequest
from headwaiter_server.scheduling.queued_request import Sequence as Waiting

_order = count()


def run_batches(graph: EncoderGraph, batches: Iterable[Sequence[NDArray[np.generic]]]) -> None:
    """Pack and run batches, one after another."""
    for batch in batches:
        graph.run(pack(batch), hidden=False)


class Planner:
    """Plans batches of sequences that belong to no request, with a cost model measured as in the server."""

    def __init__(self, model: Model) -> None:
        calibration = measure_cost(model)
        self.cost, self.limits = calibration.cost, calibration.limits

    def batches(self, sequences: Sequence[Ids], window: int) -> Iterator[list[NDArray[np.generic]]]:
        """Yield the batches of a trace; `window` sequences wait, and new ones replace those of each batch."""
        remaining = iter(sequences)
        pending = pending_of(islice(remaining, window))
        while batch := self.take(pending):
            yield [sequence.values for sequence in batch]
            for ids in islice(remaining, len(batch)):
                pending.add(waiting(ids))

    def take(self, pending: Pending) -> tuple[Waiting, ...]:
        """Plan a batch, and remove its sequences from the waiting ones."""
        return take_batch(pending, 0.0, self.cost, self.limits).batch


def take_batch(pending: Pending, now_s: float, cost: CostModel, limits: BatchLimits) -> Plan:
    """Plan a batch, and remove its sequences from the waiting ones."""
    planned = plan(pending, now_s, cost, limits)
    for sequence in planned.batch:
        pending.remove(sequence)
    return planned


def pending_of(sequences: Iterable[Ids]) -> Pending:
    """Return a queue of waiting sequences."""
    pending = Pending()
    for ids in sequences:
        pending.add(waiting(ids))
    return pending


def waiting(values: NDArray[np.generic]) -> Waiting:
    """Return a waiting sequence that belongs to no request, after those before."""
    return _waiting(values, next(_order) * 1e-6, 0)


def arrived(length: int, number: int, arrived_s: float, cost: CostModel) -> Waiting:
    """Return a waiting sequence of a request without a deadline; its index is the number."""
    own_work_s = cost.seconds(1, length, length, length**2)
    fair_start = fair_start_s(arrived_s, float("inf"), Priority.INTERACTIVE, own_work_s)
    return _waiting(np.zeros(length, np.int32), fair_start, number)


def _waiting(values: NDArray[np.generic], fair_start: float, index: int) -> Waiting:
    no_request = cast("QueuedRequest", None)
    return Waiting(values, len(values), fair_start, float("inf"), Priority.INTERACTIVE, no_request, index)
