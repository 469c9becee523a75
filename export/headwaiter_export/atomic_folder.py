"""A folder that appears whole or not at all."""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

if sys.platform != "win32":
    import fcntl


class BundleError(Exception):
    """The bundle cannot be written."""


@contextmanager
def atomic_folder(destination: Path) -> Iterator[Path]:
    """Yield a hidden folder beside the destination, then rename it to the destination; after an error, delete it.

    A folder that a killed export left is replaced.

    Raises:
        BundleError: the destination is not empty, another export writes to it, or a file cannot be written.
    """
    if destination.exists() and not (destination.is_dir() and not any(destination.iterdir())):
        raise BundleError(f"{destination} already exists: remove it, or choose another folder for the bundle")
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        with (destination.parent / f".{destination.name}.lock").open("w") as lock:
            yield from _locked_folder(destination, lock)
    except OSError as error:
        raise BundleError(f"{destination} cannot be written ({error.strerror}: {error.filename})") from error


def _locked_folder(destination: Path, lock: IO[str]) -> Iterator[Path]:
    """Yield the hidden folder while `lock` is locked; the end of the process releases the lock."""
    if not _take(lock):
        raise BundleError(f"another export writes to {destination}: wait for it, or choose another folder")
    folder = destination.parent / f".{destination.name}.part"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
        folder.rename(destination)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        Path(lock.name).unlink(missing_ok=True)


def _take(lock: IO[str]) -> bool:
    """Lock an open file, and return whether it is locked now and still exists; Windows has no such lock."""
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # An export that has just ended may have deleted this file, and another one may have locked a new file.
        return os.path.samestat(os.fstat(lock.fileno()), Path(lock.name).stat())
    except (BlockingIOError, FileNotFoundError):
        return False
