"""Read texts from a file: one per line, a field of JSON Lines, or a column of parquet."""

import argparse
import codecs
import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

# The flag that a file of this suffix needs; without the flag, the file would be read as plain lines.
_REQUIRED_FLAGS = {".jsonl": "--field", ".parquet": "--column"}

# The byte-order marks of UTF-16. Those of UTF-32 contain these marks, or NULs.
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass(frozen=True)
class Texts:
    """Texts and their places in a file.

    Attributes:
        source: name of the file, or "standard input".
        unit: unit of a place: "line" or "row".
        values: the texts.
    """

    source: str
    unit: str
    values: list[str]

    def place(self, index: int) -> str:
        """Return the place of a text, such as "line 3 of texts.txt"."""
        return f"{self.unit} {index + 1} of {self.source}"


def read_texts(arguments: argparse.Namespace) -> Texts:
    """Read the whole file that the flags of `add_text_flags` name.

    Raises:
        OSError: the file cannot be read.
        ValueError: a line or row is not a text.
        SystemExit: the file is parquet, and pyarrow is not installed.
    """
    file, field, column = arguments.file, arguments.field, arguments.column
    flag = _REQUIRED_FLAGS.get(Path(file).suffix)
    if flag and not (field or column):
        raise ValueError(f"{file} is not a file of plain lines: use {flag} to name the {flag[2:]} that holds the texts")
    source = "standard input" if file == "-" else file
    with nullcontext(sys.stdin.buffer) if file == "-" else Path(file).open("rb") as stream:
        if column:
            return _checked_texts(source, "row", _parquet_column(stream, source, column), lambda value: value)
        lines = _lines_without_mark(stream)
        return _checked_texts(source, "line", lines, partial(_json_field, name=field) if field else _line_text)


def _checked_texts(source: str, unit: str, items: Iterable[Any], read: Callable[[Any], object]) -> Texts:
    """Read a text from each item of a file; the error for an item that holds no text names its place in the file."""
    texts = Texts(source, unit, [])
    for item in items:
        try:
            text = read(item)
            if not isinstance(text, str):
                raise ValueError(f"holds a value of type {type(text).__name__}: each {unit} must hold a string")
            text.encode()  # JSON escapes can stand for surrogates, which are not Unicode text.
        except ValueError as error:
            raise ValueError(f"{texts.place(len(texts.values))} {_reason(error)}") from error
        texts.values.append(text)
    if not texts.values:
        raise ValueError(f"{source} is empty: write one text per {unit}")
    return texts


def _reason(error: ValueError) -> str:
    if isinstance(error, UnicodeError):
        return "is not valid UTF-8 text: convert the file to UTF-8"
    return f"is not JSON: {error.msg}" if isinstance(error, json.JSONDecodeError) else str(error)


def _lines_without_mark(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file without the byte-order mark that some programs write before UTF-8."""
    for number, line in enumerate(stream):
        yield line if number else line.removeprefix(codecs.BOM_UTF8)


def _decoded_line(line: bytes) -> str:
    # Most UTF-16 without a byte-order mark is valid UTF-8, with a NUL beside each character.
    if b"\0" in line or line.startswith(_UTF16_MARKS):
        raise ValueError("looks like UTF-16 or UTF-32: convert the file to UTF-8")
    # Split at line feeds only: str.splitlines would also split at form feeds and Unicode separators.
    return line.removesuffix(b"\n").removesuffix(b"\r").decode()


def _line_text(line: bytes) -> str:
    text = _decoded_line(line)
    if not text.strip():
        raise ValueError("is empty: each line must hold a text")
    return text


def _json_field(line: bytes, name: str) -> object:
    text = _decoded_line(line)
    if not text.strip():
        raise ValueError(f"is empty: each line must be an object with the field {name!r}")
    record = json.loads(text)
    if not isinstance(record, dict) or name not in record:
        raise ValueError(f"has no field {name!r}: each line must be an object with that field")
    return record[name]


def _parquet_column(stream: BinaryIO, source: str, name: str) -> Iterable[object]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise SystemExit("headwaiter-client: --column needs pyarrow: pip install pyarrow") from None
    try:
        # A parquet reader starts at the end of the file, which a pipe does not allow.
        table = parquet.ParquetFile(stream if stream.seekable() else io.BytesIO(stream.read())).read(columns=[name])
    except ValueError as error:
        raise ValueError(f"{source} is not parquet: {error}") from error
    if name not in table.column_names:
        raise ValueError(f"{source} has no column {name!r}: name an existing column with --column")
    values: list[object] = table[name].to_pylist()
    return values
