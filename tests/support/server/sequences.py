"""Waiting sequences, for tests that run no batch."""

from itertools import chain
from typing import cast

import numpy as np

from headwaiter_server.scheduling.fair_start import Priority, fair_start_s
from headwaiter_server.scheduling.pending import Pending
from headwaiter_server.scheduling.queued_request import QueuedRequest, Sequence
from headwaiter_server.settings.tenants import UNNAMED, Tenant


def waiting(
    length: int,
    index: int,
    *,
    arrived_s: float = 0.0,
    deadline_s: float = float("inf"),
    priority: Priority = Priority.INTERACTIVE,
    own_work_s: float = 0.5,
    hidden: bool = False,
    tenant: Tenant = UNNAMED,
) -> Sequence:
    """Return a sequence without a request, which the queue and the planner do not use."""
    fair_start = fair_start_s(arrived_s, deadline_s, priority, own_work_s)
    values, no_request = np.zeros(length, np.int64), cast(QueuedRequest, None)
    return Sequence(values, length, fair_start, deadline_s, priority, no_request, index, hidden, tenant=tenant)


def pending_of(sequences: list[Sequence]) -> Pending:
    """Return a queue that holds these sequences."""
    pending = Pending()
    for sequence in sequences:
        pending.add(sequence)
    return pending


def waiting_in(pending: Pending) -> list[Sequence]:
    """Return the waiting sequences, those with the earliest fair start first, and interactive ones before bulk."""
    sequences = chain.from_iterable(pending.in_turn())
    return sorted(sequences, key=lambda sequence: sequence.fair_start_s)
