"""Folders that a test run makes only once, although the tests run in several processes."""

import os
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock


class SharedFolders:
    """Folders that all processes of a test run share.

    Args:
        process_folder: this process's temporary folder.
    """

    def __init__(self, process_folder: Path) -> None:
        self._parent = process_folder.parent if "PYTEST_XDIST_WORKER" in os.environ else process_folder

    def get(self, name: str, make: Callable[[Path], object]) -> Path:
        """Return the folder of this name, and make the folder first if no process has made it yet."""
        folder = self._parent / name
        with FileLock(f"{folder}.lock"):
            if not folder.exists():
                make(folder)
        return folder
