"""A file of vectors that is written row by row, so that a run can resume an interrupted run.

While the output OUT.npy is incomplete, two files lie beside it:

- OUT.npy.partial: the future OUT.npy, with fewer rows than its header says;
- OUT.npy.journal: one line of JSON with the model and the options of the rows, then for each row 16 bytes, the
  BLAKE2b hash of its text and of the row itself. The run holds a lock on this file, which ends with its process.

A run with the same model and options keeps the rows up to the first text that differs, or the first row that is not
what the earlier run wrote. If no row can be kept, or if the model or the options differ, the run fails unless --restart
discards the rows.

If the output has another format, OUT.partial is a .npy file all the same. After its last row, the run writes the output
into OUT.converted, which is then moved; a run that is interrupted meanwhile keeps all rows.

If the output is a symbolic link, all this happens to the file to which the link leads.
"""

import io
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

# Writes the rows in another format into a file.
Convert: TypeAlias = Callable[[NDArray[Any], BinaryIO], None]

_HASH_BYTES = 16


class ResumableFile:
    """A file that grows by one row per text: `begin`, then `append` for each text, then `finish`.

    While an object exists, no other process can write the same file.

    Args:
        output: path of the complete file.
        overwrite: whether the complete file may replace an existing file.

    Attributes:
        resumed_rows: number of rows kept from an earlier run.

    Raises:
        OSError: a file cannot be written.
        ValueError: the path is not that of a regular file, the file exists and `overwrite` is false, another process
            writes it, or the journal is the file of another program.
        SystemExit: the operating system has no `flock`.
    """

    def __init__(self, output: Path, *, overwrite: bool) -> None:
        _check_output(output, overwrite=overwrite)
        self._output = output.resolve() if output.is_symlink() else output
        if not self._output.parent.is_dir():
            raise ValueError(
                f"the folder {self._output.parent} does not exist: create it, or name another file with --output"
            )
        self._overwrite = overwrite
        self._vectors_path, self._journal_path = Path(f"{self._output}.partial"), Path(f"{self._output}.journal")
        self._vectors: io.FileIO | None = None
        self._journal = _open_locked(self._journal_path, output)
        content = self._journal.readall()
        self._head, _, self._hashes = content.partition(b"\n")
        try:
            if content:
                json.loads(self._head)["model"]
        except (KeyError, TypeError, ValueError):
            self._journal.close()
            raise ValueError(
                f"{self._journal_path} is not the journal of an encode run: remove it, or name another file with "
                "--output"
            ) from None
        self._texts: Sequence[str] = ()
        self._rows = len(self._hashes) // _HASH_BYTES
        self._finished = False
        self.resumed_rows = 0

    def begin(
        self, settings: Mapping[str, Any], texts: Sequence[str], row_type: np.dtype[Any], *, restart: bool
    ) -> None:
        """Keep the rows of an earlier run that are of use, and make the files ready for the next row.

        Args:
            settings: the model and the options, which all rows have in common, as JSON values.
            texts: the texts of the rows.
            row_type: NumPy data type of one row.
            restart: whether to discard the rows of an earlier run.

        Raises:
            OSError: a file cannot be read or written.
            ValueError: the rows of an earlier run have other settings or other texts.
        """
        header = _npy_header(row_type, len(texts))
        self._texts = texts
        self._vectors = _open_regular(self._vectors_path)
        self._vectors.seek(len(header))
        reusable = 0 if restart else self._reusable_rows(self._vectors, settings, row_type.itemsize)
        self.resumed_rows = self._rows = reusable
        # The journal never lists rows that the other file lacks, so it loses rows first and gains them last. Its first
        # line keeps its length: a process that is killed while it writes the line cannot shift the hashes.
        head = json.dumps(settings, sort_keys=True).encode().ljust(len(self._head) if reusable else 0)
        self._journal.seek(0)
        _write(self._journal, head + b"\n" + self._hashes[: reusable * _HASH_BYTES])
        self._journal.truncate()
        self._hashes = b""
        self._vectors.truncate(len(header) + reusable * row_type.itemsize)
        self._vectors.seek(0)
        _write(self._vectors, header)
        self._vectors.seek(0, io.SEEK_END)

    def append(self, row: bytes) -> None:
        """Add the row of the next text.

        Raises:
            OSError: the row cannot be written completely.
        """
        assert self._vectors is not None
        _write(self._vectors, row)
        _write(self._journal, _hash(self._texts[self._rows], row))
        self._rows += 1

    def finish(self, convert: Convert | None = None) -> None:
        """Put the complete file into its place, once its content is on the disk.

        Args:
            convert: writes the complete file; None for a .npy file.

        Raises:
            OSError: the file cannot be stored or moved.
            ValueError: meanwhile, another process has put something into that place.
        """
        assert self._vectors is not None
        assert self._rows == len(self._texts)
        with _naming(self._vectors_path):
            os.fsync(self._vectors.fileno())
        if convert:
            with self._converted(convert) as complete:
                self._move(complete)
            self._vectors_path.unlink()
        else:
            self._move(self._vectors_path)
        self._finished = True
        _sync_folder(self._output.parent)

    @property
    def resumable(self) -> bool:
        """Whether another run can keep some rows."""
        return self._rows > 0 and not self._finished

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._vectors is not None:
            self._vectors.close()
            if not self._rows:  # Files without a row are of no use to another run.
                self._vectors_path.unlink()
        # The lock ends with `close`: only then may another process begin with new files.
        if not self.resumable:
            self._journal_path.unlink()
        self._journal.close()

    @contextmanager
    def _converted(self, convert: Convert) -> Iterator[Path]:
        """Yield the path of a new file with all rows in another format; at the end, remove the file if it is there.

        Raises:
            OSError: the file cannot be written.
        """
        path = Path(f"{self._output}.converted")
        path.unlink(missing_ok=True)  # An earlier run may have been killed while it wrote this file.
        try:
            with _naming(path), io.BufferedWriter(_open_regular(path)) as file:
                convert(np.load(self._vectors_path, mmap_mode="r"), file)
                file.flush()
                os.fsync(file.fileno())
            yield path
        finally:
            path.unlink(missing_ok=True)

    def _move(self, complete: Path) -> None:
        """Move the complete file into its place; without `overwrite`, only if the place is free.

        Raises:
            OSError: the file cannot be moved.
            ValueError: meanwhile, another process has put something into that place.
        """
        _check_output(self._output, overwrite=self._overwrite)
        with suppress(FileNotFoundError):
            complete.chmod(self._output.stat().st_mode)  # The replaced file may be private.
        complete.replace(self._output)

    def _reusable_rows(self, vectors: io.FileIO, settings: Mapping[str, Any], row_bytes: int) -> int:
        """Return the number of rows of an earlier run that belong to the first texts of this run.

        Args:
            vectors: the file of rows, at the start of its first row.
            settings: the settings of this run.
            row_bytes: number of bytes of a row.

        Raises:
            ValueError: the earlier run had other settings, or another first text.
        """
        if not self._rows or os.fstat(vectors.fileno()).st_size < vectors.tell() + row_bytes:
            return 0
        earlier = json.loads(self._head)
        differences = [
            f"{name} was {earlier.get(name)!r} and is {value!r}"
            for name, value in settings.items()
            # A run without truncation finishes only rows of texts that are short enough; truncation would not change
            # them.
            if earlier.get(name) != value and (name, earlier.get(name)) != ("truncation", "error")
        ]
        matching = 0 if differences else self._matching_rows(vectors, row_bytes)
        if matching:
            return matching
        difference = ", ".join(differences) or "the first text or its vector differs"
        raise ValueError(
            f"{self._vectors_path} holds {self._rows:,} rows of another run ({difference}): "
            "resume that run with its options, or discard its rows with --restart"
        )

    def _matching_rows(self, vectors: io.FileIO, row_bytes: int) -> int:
        """Return the number of leading rows that are those of the texts, as the earlier run wrote them."""
        starts = range(0, self._rows * _HASH_BYTES, _HASH_BYTES)
        for count, (start, text) in enumerate(zip(starts, self._texts, strict=False)):
            if self._hashes[start : start + _HASH_BYTES] != _hash(text, vectors.read(row_bytes)):
                return count
        return min(len(starts), len(self._texts))


def _check_output(output: Path, *, overwrite: bool) -> None:
    """Check that a path is free or, with `overwrite`, that of a regular file; follow symbolic links.

    Raises:
        OSError: the path cannot be looked up.
        ValueError: something is there that must not be replaced.
    """
    try:
        mode = output.stat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise ValueError(f"{output} is not a regular file: name another file with --output")
    if not overwrite:
        raise ValueError(f"{output} already exists: replace it with --overwrite, or name another file with --output")


def _open_locked(journal: Path, output: Path) -> io.FileIO:
    """Open the journal of an output, and lock it until it is closed or this process ends.

    Raises:
        OSError: the file cannot be opened or locked.
        ValueError: another process has locked the file, or the file is not a regular file.
        SystemExit: the operating system has no `flock`.
    """
    try:
        import fcntl
    except ImportError:
        raise SystemExit("headwaiter-client: encode locks its output with flock: use Linux or macOS") from None
    while True:
        file = _open_regular(journal)
        try:
            with _naming(journal):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            if not isinstance(error, BlockingIOError):
                raise
            raise ValueError(
                f"another run is writing {output}: wait until it ends, or name another file with --output"
            ) from None
        # If the other run has ended and removed the file since this run opened it, the lock is worthless.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), journal.stat()):
                return file
        file.close()


def _open_regular(path: Path) -> io.FileIO:
    """Open a regular file for reading and writing without a buffer, so that a killed process loses no row.

    Raises:
        OSError: the file cannot be opened, or is a symbolic link, which another user may have put there.
        ValueError: the file is not a regular file.
    """
    _check_output(path, overwrite=True)
    return io.FileIO(path, "r+", opener=lambda name, flags: os.open(name, flags | os.O_CREAT | os.O_NOFOLLOW, 0o666))


def _write(file: io.FileIO, content: bytes) -> None:
    """Write all bytes.

    Raises:
        OSError: the disk is full, for example; the error names the file.
    """
    rest = memoryview(content)
    with _naming(file.name):
        while rest:
            # A disk that is nearly full takes only some of the bytes; the next write then fails.
            rest = rest[file.write(rest) :]


def _sync_folder(folder: Path) -> None:
    """Store the names of the files in a folder on the disk."""
    with _naming(folder):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def _naming(path: Any) -> Iterator[None]:
    """Add the name of the file to an `OSError`, which the functions for open files leave out."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _npy_header(row_type: np.dtype[Any], rows: int) -> bytes:
    """Return the header of a .npy file; NumPy pads it to the same length for every number of rows."""
    header = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(row_type.base)
    np.lib.format.write_array_header_1_0(
        header, {"descr": descr, "fortran_order": False, "shape": (rows, *row_type.shape)}
    )
    return header.getvalue()


def _hash(text: str, row: bytes) -> bytes:
    """Return the hash of a text and its row; the row may not have reached the disk when a machine lost power."""
    return blake2b(text.encode() + row, digest_size=_HASH_BYTES).digest()
