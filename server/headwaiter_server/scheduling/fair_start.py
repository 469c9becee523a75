"""Compute the one time that orders the queue: the fair start of a sequence."""

from enum import IntEnum


class Priority(IntEnum):
    """The classes of work, with the names that `headwaiter.v1` has for them; a batch takes the first class first."""

    INTERACTIVE = 0
    BULK = 1


# With a higher factor, small requests gain little, and large requests wait longer on a busy server.
_OWN_WORK_FACTOR = 4.0
# For this long after its arrival, work yields to the work of earlier classes.
DELAYS_S = {Priority.INTERACTIVE: 0.0, Priority.BULK: 20.0}


def fair_start_s(arrived_s: float, deadline_s: float, priority: Priority, own_work_s: float) -> float:
    """Return the arrival + 4 × own work, or the deadline if that is earlier, and add the delay of the priority.

    Small requests overtake large ones, but no sequence starves: a sequence that arrives after the fair start of another
    sequence of its tenant never leads a batch before it.

    Args:
        arrived_s: arrival of the request.
        deadline_s: deadline of the request; infinity without a deadline.
        priority: priority of the request.
        own_work_s: seconds that the request takes alone on a device, without padding.
    """
    return min(deadline_s, arrived_s + _OWN_WORK_FACTOR * own_work_s) + DELAYS_S[priority]
