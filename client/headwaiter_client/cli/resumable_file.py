"""A .npy file of vectors that is written row by row, so that a run can resume an interrupted run.

While OUT.npy is incomplete, two files lie beside it:

- OUT.npy.partial: the future OUT.npy, with fewer rows than its header says;
- OUT.npy.journal: one line of JSON with the model and the options of the rows, then for each row 16 bytes, the
  BLAKE2b hash of its text.

A run with the same model and options keeps the rows up to the first text that differs. If no row can be kept, or if the
model or the options differ, the run fails unless --restart discards the rows.
"""

import io
import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

_HASH_BYTES = 16


def check_output(output: Path) -> None:
    """Check the path of a complete file, so that a wrong path fails before the work and not after it.

    Raises:
        ValueError: the path is a folder, or lies in a folder that does not exist.
    """
    if output.is_dir():
        raise ValueError(f"{output} is a folder: name a file with --output")
    if not output.parent.is_dir():
        raise ValueError(f"the folder {output.parent} does not exist: create it, or name another --output")


class ResumableFile:
    """A .npy file that grows by one row per text.

    Args:
        output: path of the complete file.
        settings: the model and the options, which all rows have in common, as JSON values.
        texts: the texts of the rows.
        row_type: NumPy data type of one row.
        restart: whether to discard the rows of an earlier run.

    Attributes:
        resumed_rows: number of rows kept from an earlier run.

    Raises:
        OSError: a file cannot be written.
        ValueError: the rows of an earlier run have other settings or other texts.
    """

    def __init__(
        self, output: Path, settings: Mapping[str, Any], texts: Sequence[str], row_type: np.dtype[Any], *, restart: bool
    ) -> None:
        self._output = output
        self._texts = texts
        self._paths = Path(f"{output}.partial"), Path(f"{output}.journal")
        reusable = 0 if restart else _reusable_rows(*self._paths, settings, texts)
        self._vectors, self._journal = [_open_unbuffered(path) for path in self._paths]
        header = _npy_header(row_type, len(texts))
        whole_rows = max(0, self._vectors.seek(0, io.SEEK_END) - len(header)) // row_type.itemsize
        self.resumed_rows = self._rows = min(whole_rows, reusable)
        self._vectors.seek(0)
        self._vectors.write(header)
        self._vectors.seek(self.resumed_rows * row_type.itemsize, io.SEEK_CUR)
        self._vectors.truncate()
        # The length of the first line may have changed, which moves the hashes; so write the whole journal again.
        hashes = b"".join(map(_text_hash, texts[: self.resumed_rows]))
        self._journal.write(json.dumps(settings, sort_keys=True).encode() + b"\n" + hashes)
        self._journal.truncate()

    def append(self, row: bytes) -> None:
        """Add the row of the next text."""
        self._vectors.write(row)
        self._journal.write(_text_hash(self._texts[self._rows]))
        self._rows += 1

    @property
    def incomplete(self) -> bool:
        """Whether the file has some rows, but not all."""
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
        elif not self._rows:  # Files without a row are of no use to the next run.
            vectors.unlink()
            journal.unlink()


def _open_unbuffered(path: Path) -> io.FileIO:
    """Open a file for reading and writing without a buffer, so that a killed process loses no row."""
    path.touch()
    return path.open("r+b", buffering=0)


def _npy_header(row_type: np.dtype[Any], rows: int) -> bytes:
    """Return the header of a .npy file; NumPy pads it to the same length for every number of rows."""
    header = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(row_type.base)
    np.lib.format.write_array_header_1_0(
        header, {"descr": descr, "fortran_order": False, "shape": (rows, *row_type.shape)}
    )
    return header.getvalue()


def _reusable_rows(partial: Path, journal: Path, settings: Mapping[str, Any], texts: Sequence[str]) -> int:
    """Return the number of rows of an earlier run that belong to the first texts of this run.

    Raises:
        ValueError: the earlier run had other settings, or another first text.
    """
    head, _, hashes = journal.read_bytes().partition(b"\n") if journal.exists() else (b"", b"", b"")
    rows = len(hashes) // _HASH_BYTES
    if not rows:
        return 0
    earlier = json.loads(head)
    matching = _matching_texts(hashes, texts)
    differences = [
        f"{name} was {earlier.get(name)!r} and is {value!r}"
        for name, value in settings.items()
        # A run without truncation finishes only rows of texts that are short enough; truncation would not change them.
        if earlier.get(name) != value and (name, earlier.get(name)) != ("truncation", "error")
    ]
    if not differences and matching:
        return matching
    difference = ", ".join(differences) or "the first text differs"
    raise ValueError(
        f"{partial} holds {rows:,} rows of another run ({difference}): "
        "resume that run with its options, or discard its rows with --restart"
    )


def _matching_texts(hashes: bytes, texts: Sequence[str]) -> int:
    """Return the number of leading hashes that match the texts."""
    starts = range(0, len(hashes) - _HASH_BYTES + 1, _HASH_BYTES)
    for count, (start, text) in enumerate(zip(starts, texts, strict=False)):
        if hashes[start : start + _HASH_BYTES] != _text_hash(text):
            return count
    return min(len(starts), len(texts))


def _text_hash(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=_HASH_BYTES).digest()
