"""Lets the threads that compute give way to those that receive requests, where they share cores."""

import os
import sys
from contextlib import suppress

# To receive a request takes little, and a batch long: with this, who is refused on a busy core hears of it sooner.
_NICE = 5


def give_way() -> None:
    """Let others go before this thread from now on, and before those that it starts; on Linux only.

    Elsewhere it would be the whole process.
    """
    if sys.platform == "linux":
        # A sandbox may forbid it, and all works without.
        with suppress(OSError):
            os.nice(_NICE)
