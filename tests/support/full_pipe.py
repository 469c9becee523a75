"""A pipe whose reader is stuck."""

import os


def full_pipe() -> tuple[int, int]:
    """Return the descriptors of the reader and of the writer of a pipe that is full of dots."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    for size in (4096, 1):
        try:
            while True:
                os.write(writer, b"." * size)
        except BlockingIOError:
            pass
    os.set_blocking(writer, True)
    return reader, writer
