"""Headwaiter's own server with a recorder that can be told to record nothing, to tell what metrics cost.

Run as `python -m bench.servers.silent BUNDLE` with the flags of headwaiter-server. One process serves both cases:
two processes of the same code differ by more than what is to be measured. To be silent costs a call for each event.
"""

import functools
import signal
import sys
import threading
from collections.abc import Callable
from unittest.mock import patch

from headwaiter_server import app, cli
from headwaiter_server.metrics import Recorder

# Signals that say so; it records until it is told otherwise.
SILENCE, RECORD = signal.SIGUSR1, signal.SIGUSR2

# What tells the recorder what is there; the other methods tell it what happens.
_KEPT = {"serving"}


def main() -> int:
    """Serve."""
    silenced = threading.Event()
    signal.signal(SILENCE, lambda *_: silenced.set())
    signal.signal(RECORD, lambda *_: silenced.clear())

    def unless_silenced(record: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(record)
        def wrapped(*arguments: object, **named: object) -> None:
            if not silenced.is_set():
                record(*arguments, **named)

        return wrapped

    events = {name: record for name, record in vars(Recorder).items() if not name.startswith("_") and name not in _KEPT}
    wrapped = {name: unless_silenced(record) for name, record in events.items()}
    with patch.object(app, "Recorder", type("SilenceableRecorder", (Recorder,), wrapped)):
        return cli.main()


if __name__ == "__main__":
    sys.exit(main())
