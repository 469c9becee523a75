"""Compute the two times that order the queue: due time and fair start."""

from enum import IntEnum


class Priority(IntEnum):
    """The two classes of work; a batch takes interactive sequences before bulk sequences."""

    INTERACTIVE = 0
    BULK = 1


# A sequence is due this long after its arrival, or 10 × its request's own work after its arrival if that is later. A
# sequence cannot starve: sequences that arrive after its due time never lead a batch before it.
MAX_WAIT_S = {Priority.INTERACTIVE: 5.0, Priority.BULK: 20.0}
_MAX_WAIT_FACTOR = 10.0
# While no sequence is urgent, the fair start is 4 × the request's own work after its arrival: small requests overtake
# large ones. A higher factor hardly helps small requests, and delays large requests on a busy server.
_FAIR_START_FACTOR = 4.0


def max_wait_s(priority: Priority, own_work_s: float) -> float:
    """Return the maximum wait of a sequence, in seconds.

    The maximum wait grows with the request's own work. With a fixed maximum, long requests that wait for each other
    would all become due, and would start before the small requests behind them.
    """
    return max(MAX_WAIT_S[priority], _MAX_WAIT_FACTOR * own_work_s)


def due_s(arrived_s: float, deadline_s: float, priority: Priority, own_work_s: float) -> float:
    """Return the latest time at which a sequence should start: its deadline, or its arrival + maximum wait if earlier.

    Bulk work runs on the capacity that interactive work leaves, so a deadline does not make bulk work more urgent.

    Args:
        arrived_s: arrival of the request.
        deadline_s: deadline of the request; infinity without a deadline.
        priority: priority of the request.
        own_work_s: seconds that the request takes alone on a device, without padding.
    """
    latest_s = arrived_s + max_wait_s(priority, own_work_s)
    return latest_s if priority is Priority.BULK else min(deadline_s, latest_s)


def fair_start_s(arrived_s: float, due_s: float, priority: Priority, own_work_s: float) -> float:
    """Return the time that orders sequences while none is urgent: arrival + 4 × own work, but at most the due time.

    The fair start of bulk work is its due time.
    """
    return due_s if priority is Priority.BULK else min(due_s, arrived_s + _FAIR_START_FACTOR * own_work_s)
