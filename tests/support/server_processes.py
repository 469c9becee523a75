"""The processes of a server: its own, and those of its front ends."""

from contextlib import suppress

import psutil

from testbed.server_process import RunningServer


def processes(server: RunningServer) -> list[psutil.Process]:
    """Return the processes of a server, its own first."""
    process = psutil.Process(server.process.pid)
    return [process, *process.children(recursive=True)]


def memory_bytes(server: RunningServer) -> int:
    """Return the resident memory of all processes of a server."""
    total = 0
    for process in processes(server):
        # A front end may end at any time.
        with suppress(psutil.NoSuchProcess):
            total += process.memory_info().rss
    return total
