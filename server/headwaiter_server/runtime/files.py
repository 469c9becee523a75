"""Read files that somebody else may replace by anything."""

import os
import stat
from io import BufferedReader
from pathlib import Path


def open_regular_file(path: Path) -> BufferedReader:
    """Open a regular file for reading.

    Raises:
        OSError: the file cannot be opened, or is no regular file.
    """
    # Otherwise opening a named pipe waits for a writer, perhaps forever.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    # `fdopen` would refuse a folder, and leave its descriptor open.
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(0, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_small_file(path: Path, max_bytes: int) -> bytes:
    """Return the content of a regular file.

    Raises:
        OSError: the file cannot be read, is no regular file, or is larger than `max_bytes`.
    """
    with open_regular_file(path) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(0, f"larger than {max_bytes:,} bytes", str(path))
    return content
