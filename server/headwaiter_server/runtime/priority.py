"""Lets the threads that compute give way to those that receive requests, where they share cores."""

import os
import sys
import threading
from contextlib import suppress

# Beyond that of the process. To receive a request takes little, and a batch long: with this, who is refused on a busy
# core hears of it sooner.
_NICER = 5
_NICEST = 19


def give_way() -> None:
    """Let others go before this thread from now on, and before those that it starts; on Linux only.

    Elsewhere it would be the whole process.
    """
    if sys.platform == "linux":
        niceness = os.getpriority(os.PRIO_PROCESS, os.getpid()) + _NICER
        # A sandbox may forbid it, and all works without.
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(niceness, _NICEST))
