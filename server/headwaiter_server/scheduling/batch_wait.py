"""Decide whether to hold an idle device for a moment, because more requests are about to arrive."""

import os
from collections.abc import Callable

# Stop waiting at this number: more sequences would cost more idle time than a larger batch saves.
ENOUGH_SEQUENCES = 6
# Iterations of the event loop since the last request arrived.
_MAX_ITERATIONS = 8
# A longer yield means that another process computes on this core: stop holding the device.
_MAX_YIELD_S = 0.001


class BatchWait:
    """Holds an idle device for callers that send their requests nearly together.

    Callers that were answered together send their next requests within a few iterations of the event loop. Without a
    batch wait, each of these requests would find the device idle and run alone. After a batch of several requests, the
    device is therefore held until six sequences wait, or until eight iterations of the event loop have passed without a
    request.
    """

    def __init__(self) -> None:
        self._expects_more = False
        self._iterations = 0

    def note_batch(self, *, several_requests: bool) -> None:
        """Record whether the latest batch holds sequences of several requests."""
        self._expects_more = several_requests

    def note_arrival(self) -> None:
        """Record that a request has arrived."""
        self._iterations = 0

    def holds_device(self, waiting_sequences: int) -> bool:
        """Return whether to hold the device for another iteration of the event loop, and count the iteration."""
        self._iterations += 1
        return self._expects_more and waiting_sequences < ENOUGH_SEQUENCES and self._iterations <= _MAX_ITERATIONS


def yield_core(clock: Callable[[], float]) -> bool:
    """Yield this core to threads that receive requests; return whether the core came back within a millisecond."""
    started_s = clock()
    os.sched_yield()
    return clock() - started_s < _MAX_YIELD_S
