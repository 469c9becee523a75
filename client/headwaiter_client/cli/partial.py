"""Vectors on their way into a file, kept where the way is interrupted.

Beside OUT.npy lie, until it is whole,

- OUT.npy.partial, the file that it will be, with fewer rows than its header says;
- OUT.npy.journal: a line of JSON that says which model and options its rows are of, then for each row 16 bytes, the
  BLAKE2b of its text.

What fits the same call is not encoded again: rows of the same model and options, up to the first text that is another.
"""

import io
import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

_FINGERPRINT_BYTES = 16


class Partial:
    """A .npy file that grows by a row a text.

    Args:
        output: the file that it will be.
        terms: what all its rows have in common; as JSON has it.
        texts: what its rows stand for.
        row: data type of a row.

    Attributes:
        kept: how many rows are there from before.

    Raises:
        OSError: a file cannot be written.
    """

    def __init__(self, output: Path, terms: Mapping[str, Any], texts: Sequence[str], row: np.dtype[Any]) -> None:
        self._output = output
        self._texts = texts
        head = json.dumps(terms, sort_keys=True).encode() + b"\n"
        header = _header(row, len(texts))
        self._paths = Path(f"{output}.partial"), Path(f"{output}.journal")
        self._vectors, self._journal = files = [_opened(path) for path in self._paths]
        rows = max(0, self._vectors.seek(0, io.SEEK_END) - len(header)) // row.itemsize
        self.kept = self._rows = min(rows, _same(self._journal.read(), head, texts))
        for file, start, record_bytes in zip(files, (header, head), (row.itemsize, _FINGERPRINT_BYTES), strict=True):
            file.seek(0)
            file.write(start)
            file.seek(self.kept * record_bytes, io.SEEK_CUR)
            file.truncate()

    def append(self, row: bytes) -> None:
        """Adds the row of the next text."""
        self._vectors.write(row)
        self._journal.write(_fingerprint(self._texts[self._rows]))
        self._rows += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._vectors.close()
        self._journal.close()
        vectors, journal = self._paths
        if self._rows == len(self._texts):
            vectors.replace(self._output)
            journal.unlink()
        elif not self._rows:  # Nothing was encoded: leave nothing behind.
            vectors.unlink()
            journal.unlink()


def _opened(path: Path) -> io.FileIO:
    """Opens a file to read and write what is there; nothing waits in a buffer where the process is killed."""
    path.touch()
    return path.open("r+b", buffering=0)


def _header(row: np.dtype[Any], rows: int) -> bytes:
    """Returns how a .npy file begins; NumPy leaves room in it for any number of rows."""
    header = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(row.base)
    np.lib.format.write_array_header_1_0(header, {"descr": descr, "fortran_order": False, "shape": (rows, *row.shape)})
    return header.getvalue()


def _same(journal: bytes, head: bytes, texts: Sequence[str]) -> int:
    """Returns how many rows of a journal stand for the first of the texts, under the same head."""
    if not journal.startswith(head):
        return 0
    known = range(len(head), len(journal), _FINGERPRINT_BYTES)
    for count, (start, text) in enumerate(zip(known, texts, strict=False)):
        if journal[start : start + _FINGERPRINT_BYTES] != _fingerprint(text):
            return count
    return min(len(known), len(texts))


def _fingerprint(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=_FINGERPRINT_BYTES).digest()
