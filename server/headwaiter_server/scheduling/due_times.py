"""Computes the two times that order the queue: when a sequence is due, and when its fair start is."""

from enum import IntEnum


class Priority(IntEnum):
    """The two classes of work; a batch takes interactive sequences before bulk sequences."""

    INTERACTIVE = 0
    BULK = 1


# A sequence is due this long after its arrival, or after 10 × its request's own work if that is longer. A sequence that
# arrives after another one's due time never leads a batch before it, so no sequence starves.
MAX_WAIT_S = {Priority.INTERACTIVE: 5.0, Priority.BULK: 20.0}
_MAX_WAIT_FACTOR = 10.0
# While no sequence is about to be late, a sequence may start after 4 × its request's own work: small requests overtake
# large ones. A higher factor helps small requests little, and delays large requests where the server is busy.
_FAIR_START_FACTOR = 4.0


def max_wait_s(priority: Priority, own_work_s: float) -> float:
    """Return the longest time that a sequence should wait, in seconds.

    The limit grows with the request's own work. With a fixed limit, a queue of a few long requests would be overdue by
    its length alone, and all of them would start before the small requests behind them.
    """
    return max(MAX_WAIT_S[priority], _MAX_WAIT_FACTOR * own_work_s)


def due_s(arrived_s: float, deadline_s: float, priority: Priority, own_work_s: float) -> float:
    """Return the latest time at which a sequence should start: its deadline, or its arrival + maximum wait if earlier.

    Bulk work runs on capacity that interactive work leaves, so a deadline does not make bulk work more urgent.

    Args:
        arrived_s: when the request arrived.
        deadline_s: when its answer becomes useless; infinity without a deadline.
        priority: of the request.
        own_work_s: seconds that the request takes alone on a device, without padding.
    """
    latest_s = arrived_s + max_wait_s(priority, own_work_s)
    return latest_s if priority is Priority.BULK else min(deadline_s, latest_s)


def fair_start_s(arrived_s: float, due_s: float, priority: Priority, own_work_s: float) -> float:
    """Return the time that orders sequences while none is urgent: arrival + 4 × own work, but at most the due time.

    Bulk work has its fair start at its due time.
    """
    return due_s if priority is Priority.BULK else min(due_s, arrived_s + _FAIR_START_FACTOR * own_work_s)
