"""Sequences that wait, for tests that run nothing."""

from typing import cast

import numpy as np

from headwaiter_server.scheduling.job import Job, Priority, Sequence, due_s, turn_s
from headwaiter_server.scheduling.pending import Pending


def waiting(
    length: int,
    index: int,
    *,
    arrived_s: float = 0.0,
    deadline_s: float = float("inf"),
    priority: Priority = Priority.INTERACTIVE,
    work_s: float = 0.5,
) -> Sequence:
    """Makes a sequence of no request: what waits and what is planned depends on none."""
    due = due_s(arrived_s, deadline_s, priority, work_s)
    turn = turn_s(arrived_s, due, priority, work_s)
    return Sequence(np.zeros(length, np.int64), length, due, turn, deadline_s, priority, cast(Job, None), index)


def pending_of(sequences: list[Sequence]) -> Pending:
    """Lets sequences wait."""
    pending = Pending()
    for sequence in sequences:
        pending.add(sequence)
    return pending
