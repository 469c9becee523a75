"""Headwaiter's own server with a recorder that records nothing, to tell what metrics cost.

Run as `python -m bench.silent_server BUNDLE` with the flags of headwaiter-server.
"""

import sys
from unittest.mock import patch

from headwaiter_server import app, cli
from headwaiter_server.metrics import Recorder

# What tells the recorder what is there; the other methods tell it what happens.
_KEPT = {"serving"}


def _nothing(*_: object, **__: object) -> None:
    pass


def main() -> int:
    """Serve."""
    events = [name for name in vars(Recorder) if not name.startswith("_") and name not in _KEPT]
    silent = type("SilentRecorder", (Recorder,), dict.fromkeys(events, _nothing))
    with patch.object(app, "Recorder", silent):
        return cli.main()


if __name__ == "__main__":
    sys.exit(main())
