"""Compute the one time that orders the queue: the fair start of a sequence."""

from enum import IntEnum


class Priority(IntEnum):
    """The two classes of work; a batch takes interactive sequences before bulk sequences."""

    INTERACTIVE = 0
    BULK = 1


# With a higher factor, small requests gain little, and large requests wait longer on a busy server.
_FURTHER_WORK_FACTOR = 4.0
BULK_DELAY_S = 20.0


def fair_start_s(arrived_s: float, deadline_s: float, priority: Priority, further_work_s: float) -> float:
    """Return the arrival + 4 × further work, or the deadline if that is earlier; for bulk work, 20 s later.

    Small requests overtake large ones, but no sequence starves: a sequence that arrives after the fair start of another
    sequence never leads a batch before it.

    Args:
        arrived_s: arrival of the request.
        deadline_s: deadline of the request; infinity without a deadline.
        priority: priority of the request.
        further_work_s: seconds that the sequences of the request, except the longest one, take alone on a device,
            without padding. A single sequence has the place of its arrival: if long texts waited longer, p99 would
            rise.
    """
    fair_s = min(deadline_s, arrived_s + _FURTHER_WORK_FACTOR * further_work_s)
    return fair_s + BULK_DELAY_S if priority is Priority.BULK else fair_s
