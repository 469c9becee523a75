"""Prepare and end the Python interpreter of each process of the server: garbage collection, memory, and exit."""

import asyncio
import atexit
import ctypes
import gc
import os
import sys
from contextlib import suppress
from typing import NoReturn

from headwaiter_server.runtime.memory import give_back_free_memory
from headwaiter_server.settings.environment import usable_processors

# The parameter of mallopt that limits the pools; from <malloc.h>.
_M_ARENA_MAX = -8
# Requests in progress hold more objects than Python's default threshold, so collections would be frequent and free
# little memory.
_GC_THRESHOLD_OBJECTS = 10_000
# Every call leaves a cycle of objects in grpc.aio, and the cycle keeps the memory of the call's connection: over 1 MiB
# after oversized headers. Without this timer, the threshold would be reached only after 1,000 such connections.
_GC_INTERVAL_S = 5.0


def limit_memory_pools() -> None:
    """Let glibc keep one pool of free memory per processor, but at least two; do nothing with another C library.

    By default, glibc has up to eight pools per processor, and each one keeps what large messages took: under messages
    of 14 MiB and unread replies, two front ends took 380 MiB more, and 270 with two pools. Call this function before
    the process starts threads.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").mallopt(_M_ARENA_MAX, max(2, usable_processors()))


def tune_garbage_collector() -> None:
    """Collect rarely, and never scan the objects created at start-up.

    A collection that scans these objects stops the event loop for about 20 ms.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD_OBJECTS)


async def collect_garbage() -> None:
    """Collect the garbage of calls at intervals, forever, and give free memory back to the operating system.

    Each collection is short, because it skips frozen objects. Giving memory back takes a few milliseconds, in a thread;
    without it, the C library keeps what large messages took.
    """
    while True:
        await asyncio.sleep(_GC_INTERVAL_S)
        gc.collect()
        await asyncio.to_thread(give_back_free_memory)


def exit_at_once(exit_code: int) -> NoReturn:
    """Exit without waiting for threads that load a model, run a batch or tokenise: they cannot be interrupted."""
    # Only these functions delete temporary files and flush the log; the threads still run meanwhile.
    atexit._run_exitfuncs()  # noqa: SLF001 - atexit has no public function for this
    # Standard error may be closed, or a pipe that nobody reads any more.
    if sys.stderr is not None:
        with suppress(OSError):
            sys.stderr.flush()
    os._exit(exit_code)
