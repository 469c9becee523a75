"""Exit a process of the server whose threads may still be busy."""

import atexit
import os
import sys
from typing import NoReturn


def exit_at_once(exit_code: int) -> NoReturn:
    """Exit without waiting for threads that load a model, run a batch or tokenise: they cannot be interrupted."""
    # Only these functions delete temporary files and flush the log; the threads still run meanwhile.
    atexit._run_exitfuncs()  # noqa: SLF001 - atexit has no public function for this
    sys.stderr.flush()
    os._exit(exit_code)
