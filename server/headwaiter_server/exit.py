"""Exit a process of the server whose threads may still be busy."""

import atexit
import os
import sys
from contextlib import suppress
from typing import NoReturn


def exit_at_once(exit_code: int) -> NoReturn:
    """Exit without waiting for threads that load a model, run a batch or tokenise: they cannot be interrupted."""
    # Only these functions delete temporary files and flush the log; the threads still run meanwhile.
    atexit._run_exitfuncs()  # noqa: SLF001 - atexit has no public function for this
    # Standard error may be closed, or a pipe that nobody reads any more.
    if sys.stderr is not None:
        with suppress(OSError):
            sys.stderr.flush()
    os._exit(exit_code)
