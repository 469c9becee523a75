"""Folders that are made once a run, though the tests run in several processes."""

import os
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock


class Once:
    """Makes a folder unless a test has made it already, in this process or in another one of the same run.

    Args:
        own: this process's folder of the run.
    """

    def __init__(self, own: Path) -> None:
        self._shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own

    def __call__(self, name: str, make: Callable[[Path], object]) -> Path:
        """Return the folder of this name, made by `make`."""
        folder = self._shared / name
        with FileLock(f"{folder}.lock"):
            if not folder.exists():
                make(folder)
        return folder
