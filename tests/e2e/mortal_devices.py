"""Devices that die or hang on magic sequences, and a server that has them.

python -m tests.e2e.mortal_devices BUNDLE [flags of headwaiter-server]
"""

import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from headwaiter_server import cli
from headwaiter_server.concurrency import watchdog
from headwaiter_server.runtime.graph import EncoderGraph, Outputs
from headwaiter_server.runtime.packing import PackedBatch
from headwaiter_server.scheduling import devices

# A batch with one of these sequences kills the device that runs it, or never ends.
KILL, HANG = [13, 13, 13], [17, 17, 17]
# The limits of the watchdog in the server of this module.
_LIMIT_S, _WATCH_INTERVAL_S = 2.0, 0.05


class MortalDevices:
    """What happened to the sessions of all servers in this process.

    Attributes:
        deaths: number of sessions that died.
        alive_at_opening: for each session that was opened, the earlier sessions that were in memory then, by number.
        held: while this event is not set, batches wait.
        entered: set when a batch waits.
    """

    def __init__(self) -> None:
        self.deaths = 0
        self.alive_at_opening: list[list[int]] = []
        self.held = threading.Event()
        self.held.set()
        self.entered = threading.Event()
        self._sessions: list[weakref.ref[object]] = []
        self._dead = weakref.WeakSet[EncoderGraph]()

    def run(self, graph: EncoderGraph, batch: PackedBatch) -> None:
        """Kill or stop the session of a graph, as its batch says.

        Raises:
            OSError: the session is dead.
        """
        if not self.held.is_set():
            self.entered.set()
            self.held.wait(30)
        sequences = [part.tolist() for part in batch.split(batch.rows)]
        if HANG in sequences:
            threading.Event().wait()
        if KILL in sequences and graph not in self._dead:
            self._dead.add(graph)
            self.deaths += 1
        if graph in self._dead:
            raise OSError("the GPU fell off the bus")

    @property
    def opened_count(self) -> int:
        """Number of sessions that were opened."""
        return len(self._sessions)

    def note_opening(self) -> None:
        """Note which sessions are in memory before the next one opens."""
        self.alive_at_opening.append([index for index, session in enumerate(self._sessions) if session() is not None])

    def note_opened(self, session: object) -> None:
        self._sessions.append(weakref.ref(session))


@contextmanager
def mortal_devices() -> Iterator[MortalDevices]:
    """Make the devices of all servers in this process mortal, and free memory by counting references alone."""
    mortal = MortalDevices()
    run, open_graph = EncoderGraph.run, EncoderGraph.open

    def run_or_die(graph: EncoderGraph, batch: PackedBatch, *, hidden: bool) -> Outputs:
        mortal.run(graph, batch)
        return run(graph, batch, hidden=hidden)

    def open_noted(*arguments: Any, **options: Any) -> EncoderGraph:
        mortal.note_opening()
        graph = open_graph(*arguments, **options)
        mortal.note_opened(graph._session)
        return graph

    # A server process freezes the objects of its start, so the garbage collector would never free them.
    gc.disable()
    with patch.object(EncoderGraph, "run", run_or_die), patch.object(EncoderGraph, "open", open_noted):
        try:
            yield mortal
        finally:
            gc.enable()
            mortal.held.set()


def main() -> int:
    """Serve as the command line says, with a watchdog that waits for seconds only."""
    watchdog._SHORTEST_LIMIT_S = _LIMIT_S
    devices._WATCH_INTERVAL_S = _WATCH_INTERVAL_S
    with mortal_devices():
        return cli.main()


if __name__ == "__main__":
    sys.exit(main())
