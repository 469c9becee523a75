"""Headwaiter's server with metrics that two signals turn off and on: it measures the cost of metrics.

Run it with `python -m bench.servers.silent BUNDLE` and the flags of headwaiter-server. One process serves both cases,
because the speed of two processes differs by more than metrics cost. With metrics off, an event costs a function call.
"""

import functools
import signal
import sys
import threading
from collections.abc import Callable
from unittest.mock import patch

from headwaiter_server import app, cli
from headwaiter_server.metrics import Recorder

# SILENCE turns metrics off, RECORD turns them on; they are on at the start.
SILENCE, RECORD = signal.SIGUSR1, signal.SIGUSR2

# This method describes the served model; all others record events.
_NOT_EVENTS = {"serving"}


def main() -> int:
    """Serve as the command line says."""
    silenced = threading.Event()
    signal.signal(SILENCE, lambda *_: silenced.set())
    signal.signal(RECORD, lambda *_: silenced.clear())

    def unless_silenced(record: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(record)
        def wrapped(*arguments: object, **named: object) -> None:
            if not silenced.is_set():
                record(*arguments, **named)

        return wrapped

    events = {
        name: record for name, record in vars(Recorder).items() if not name.startswith("_") and name not in _NOT_EVENTS
    }
    wrapped = {name: unless_silenced(record) for name, record in events.items()}
    with patch.object(app, "Recorder", type("SilenceableRecorder", (Recorder,), wrapped)):
        return cli.main()


if __name__ == "__main__":
    sys.exit(main())
