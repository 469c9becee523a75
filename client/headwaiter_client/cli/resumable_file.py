"""Vectors on their way into a file, kept where the way is interrupted.

Beside OUT.npy lie, until it is whole,

- OUT.npy.partial, the file that it will be, with fewer rows than its header says;
- OUT.npy.journal: a line of JSON that says which model and options its rows are of, then for each row 16 bytes, the
  BLAKE2b of its text.

What fits the same call is not encoded again: rows of the same model and options, up to the first text that is another.
Rows of another call are never thrown away unless that was asked for.
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
        restart: keep nothing from before.

    Attributes:
        kept: how many rows are there from before.

    Raises:
        OSError: a file cannot be written.
        ValueError: the rows from before are of another call.
    """

    def __init__(
        self, output: Path, terms: Mapping[str, Any], texts: Sequence[str], row: np.dtype[Any], *, restart: bool
    ) -> None:
        self._output = output
        self._texts = texts
        self._paths = Path(f"{output}.partial"), Path(f"{output}.journal")
        known = 0 if restart else _known(*self._paths, terms, texts)
        self._vectors, self._journal = [_opened(path) for path in self._paths]
        header = _header(row, len(texts))
        rows = max(0, self._vectors.seek(0, io.SEEK_END) - len(header)) // row.itemsize
        self.kept = self._rows = min(rows, known)
        self._vectors.seek(0)
        self._vectors.write(header)
        self._vectors.seek(self.kept * row.itemsize, io.SEEK_CUR)
        self._vectors.truncate()
        # The head may have grown, and then the records move.
        self._journal.write(_head(terms) + b"".join(map(_fingerprint, texts[: self.kept])))
        self._journal.truncate()

    def append(self, row: bytes) -> None:
        """Adds the row of the next text."""
        self._vectors.write(row)
        self._journal.write(_fingerprint(self._texts[self._rows]))
        self._rows += 1

    @property
    def begun(self) -> bool:
        """Whether some rows are there, but not all."""
        return 0 < self._rows < len(self._texts)

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


def _known(partial: Path, journal: Path, terms: Mapping[str, Any], texts: Sequence[str]) -> int:
    """Returns how many rows stand for the first of the texts, by their journal.

    Raises:
        ValueError: none does, or they are of other terms.
    """
    head, _, records = journal.read_bytes().partition(b"\n") if journal.exists() else (b"", b"", b"")
    rows = len(records) // _FINGERPRINT_BYTES
    if not rows:
        return 0
    former = json.loads(head)
    same = _same(records, texts)
    differences = [
        f"{name} was {former.get(name)!r} and is {value!r}"
        for name, value in terms.items()
        # What came through without being cut is no other where the rest may be cut.
        if former.get(name) != value and (name, former.get(name)) != ("truncation", "error")
    ]
    if not differences and same:
        return same
    what = ", ".join(differences) or "the first text is another"
    raise ValueError(
        f"{partial} holds {rows:,} rows of another call, where {what}: "
        "repeat that call to go on with it, or drop its rows with --restart"
    )


def _same(records: bytes, texts: Sequence[str]) -> int:
    """Returns how many records stand for the first of the texts."""
    starts = range(0, len(records) - _FINGERPRINT_BYTES + 1, _FINGERPRINT_BYTES)
    for count, (start, text) in enumerate(zip(starts, texts, strict=False)):
        if records[start : start + _FINGERPRINT_BYTES] != _fingerprint(text):
            return count
    return min(len(starts), len(texts))


def _head(terms: Mapping[str, Any]) -> bytes:
    return json.dumps(terms, sort_keys=True).encode() + b"\n"


def _fingerprint(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=_FINGERPRINT_BYTES).digest()
