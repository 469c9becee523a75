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
    folder, lock = (destination.parent / f".{destination.name}.{suffix}" for suffix in ("part", "lock"))
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        with lock.open("w") as file:
            if not take_lock(file):
                raise BundleError(f"another export writes to {destination}: wait for it, or choose another folder")
            try:
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                yield folder
                folder.rename(destination)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
                lock.unlink(missing_ok=True)
    except OSError as error:
        path = Path(error.filename or folder)  # An error of a write names no file.
        if folder not in (path, *path.parents) and path != lock and path not in destination.parents:
            raise  # Something else than the bundle cannot be read or written.
        parent = next(each for each in destination.absolute().parents if each.exists())
        free_mb = shutil.disk_usage(parent).free / 1e6
        raise BundleError(
            f"{destination} cannot be written ({error.strerror}: {path}, {free_mb:,.0f} MB free): make room, or choose "
            "another folder"
        ) from error


def take_lock(lock: IO[str], *, wait: bool = False) -> bool:
    """Lock an open file, and return whether it is locked now and still exists; Windows has no such lock.

    With `wait`, wait until no other process has locked the file.
    """
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        # An export that has just ended may have deleted this file, and another one may have locked a new file.
        return os.path.samestat(os.fstat(lock.fileno()), Path(lock.name).stat())
    except (BlockingIOError, FileNotFoundError):
        return False
