"""A column of texts in a parquet file, and a copy of the file with a column of vectors; with pyarrow."""

import io
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa

# Rows in a row group of the copy, of which one is in memory at a time: 24 MiB of vectors with 384 float32 numbers.
_ROWS_IN_GROUP = 16_384


class ParquetColumn(Sequence[str]):
    """The texts of a column. The texts of two row groups are in memory at a time; threads may share an object.

    Args:
        file: the path of the file, or a stream, which stays open.
        source: name of the file in messages.
        name: name of the column.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not parquet, or has no column of this name.
        SystemExit: pyarrow is not installed.
    """

    def __init__(self, file: Path | BinaryIO, source: str, name: str) -> None:
        try:
            from pyarrow import parquet
        except ImportError:
            raise SystemExit("headwaiter-client: --column needs pyarrow: pip install pyarrow") from None
        if isinstance(file, Path):
            file.open("rb").close()  # pyarrow's error would not name the file as the errors of other commands do.
        elif not file.seekable():
            # A parquet reader starts at the end of the file, which a pipe does not allow.
            file = io.BytesIO(file.read())
        try:
            self._file = parquet.ParquetFile(file)
        except ValueError as error:
            raise ValueError(f"{source} is not parquet: {error}") from error
        if name not in self._file.schema_arrow.names:
            raise ValueError(f"{source} has no column {name!r}: name an existing column with --column")
        groups = range(self._file.num_row_groups)
        self._ends = [*accumulate(self._file.metadata.row_group(group).num_rows for group in groups)]
        self._source = source
        # One group for the texts that are sent, and one for the texts whose vectors arrive.
        read_group = lru_cache(maxsize=2)(self._file.read_row_group)
        self._texts: Callable[[int], pa.ChunkedArray] = lambda group: read_group(group, columns=(name,)).column(0)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return the number of rows."""
        rows: int = self._file.metadata.num_rows
        return rows

    def __getitem__(self, index: Any) -> Any:
        """Return the text of a row, or the texts of a slice of rows."""
        row = range(len(self))[index]
        if isinstance(row, range):
            return [self[each] for each in row]
        group = bisect_right(self._ends, row)
        with self._lock:
            texts = self._texts(group)
        return texts[row - self._ends[group]].as_py()  # From the end of the group, so the index is negative.

    def check_new_column(self, name: str) -> None:
        """Check that the file has no column of this name.

        Raises:
            ValueError: the file has one.
        """
        if name in self._file.schema_arrow.names:
            raise ValueError(f"{self._source} already has a column {name!r}: name another with --vector-column")

    def write_with_vectors(self, name: str, vectors: NDArray[Any], copy: BinaryIO) -> None:
        """Write all columns of the file, and a new last column with a vector for each row.

        Args:
            name: name of the new column.
            vectors: the vectors [rows, width], or [rows] with the fields `values` and `scale`.
            copy: where to write.

        Raises:
            OSError: the file cannot be read, or the copy cannot be written.
        """
        import pyarrow as pa
        from pyarrow import parquet

        row = _arrow_vectors(vectors[:0])
        schema = self._file.schema_arrow.append(pa.field(name, row.type, nullable=False))
        with parquet.ParquetWriter(copy, schema) as writer:
            first = 0
            for batch in self._file.iter_batches(_ROWS_IN_GROUP):
                added = _arrow_vectors(vectors[first : first + len(batch)])
                writer.write_batch(pa.record_batch([*batch.columns, added], schema=schema))
                first += len(batch)


def _arrow_vectors(rows: NDArray[Any]) -> "pa.Array":
    """Return vectors as lists of a fixed size; int8 vectors as structs of such a list and a scale."""
    import pyarrow as pa

    if rows.dtype.names:
        return pa.StructArray.from_arrays([_arrow_vectors(rows["values"]), pa.array(rows["scale"])], rows.dtype.names)
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])
