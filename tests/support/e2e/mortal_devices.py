"""Devices that die or hang on magic sequences, and a server that has them.

python -m tests.support.e2e.mortal_devices BUNDLE [flags of headwaiter-server]
"""

import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from headwaiter_server import cli
from headwaiter_server.concurrency import watchdog
from headwaiter_server.runtime.graph import EncoderGraph, GraphOutputs
from headwaiter_server.runtime.packing import PackedBatch
from headwaiter_server.scheduling import worker

# A batch with one of these sequences kills the device that runs it, or never ends.
KILL, HANG = [13, 13, 13], [17, 17, 17]
# The limits of the watchdog in the server of this module. A test may freeze the server for as long as the first.
_LIMIT_S, _WATCH_INTERVAL_S, _LONGEST_STEP_S = 2.0, 0.05, 0.5


class MortalDevices:
    """What happened to the sessions of all servers in this process.

    Attributes:
        deaths: number of sessions that died.
    """

    def __init__(self) -> None:
        self.deaths = 0
        self._dead = weakref.WeakSet[EncoderGraph]()

    def run(self, graph: EncoderGraph, batch: PackedBatch) -> None:
        """Kill or stop the session of a graph, as the batch says.

        Raises:
            OSError: the session is dead.
        """
        sequences = [part.tolist() for part in batch.split(batch.rows)]
        if HANG in sequences:
            threading.Event().wait()
        if KILL in sequences and graph not in self._dead:
            self._dead.add(graph)
            self.deaths += 1
        if graph in self._dead:
            raise OSError("the GPU fell off the bus")


@contextmanager
def mortal_devices() -> Iterator[MortalDevices]:
    """Make the devices of all servers in this process mortal."""
    mortal, run = MortalDevices(), EncoderGraph.run

    def run_or_die(graph: EncoderGraph, batch: PackedBatch, *, hidden: bool) -> GraphOutputs:
        mortal.run(graph, batch)
        return run(graph, batch, hidden=hidden)

    with patch.object(EncoderGraph, "run", run_or_die):
        yield mortal


def main() -> int:
    """Serve as the command line says, with a watchdog that waits for seconds only."""
    watchdog._SHORTEST_LIMIT_S = _LIMIT_S
    watchdog._LONGEST_STEP_S = _LONGEST_STEP_S
    worker._WATCH_INTERVAL_S = _WATCH_INTERVAL_S
    with mortal_devices():
        return cli.main()


if __name__ == "__main__":
    sys.exit(main())
