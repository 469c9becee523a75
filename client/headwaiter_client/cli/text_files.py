"""Read texts from a file: one per line, a field of JSON Lines, or a column of parquet."""

import argparse
import codecs
import json
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from headwaiter_client.cli.parquet_column import ParquetColumn

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
        values: the texts: a list, or a column of parquet, which is not in memory as a whole.
    """

    source: str
    unit: str
    values: Sequence[str]

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
    if column:
        texts = Texts(source, "row", ParquetColumn(sys.stdin.buffer if file == "-" else Path(file), source, column))
        deque(_checked(texts, texts.values, lambda value: value), maxlen=0)  # Reads all texts, and keeps none.
    else:
        values: list[str] = []
        texts = Texts(source, "line", values)
        with nullcontext(sys.stdin.buffer) if file == "-" else Path(file).open("rb") as stream:
            read = partial(_json_field, name=field) if field else _line_text
            values.extend(_checked(texts, _lines_without_mark(stream), read))
    if not texts.values:
        raise ValueError(f"{source} is empty: write one text per {texts.unit}")
    return texts


def _checked(texts: Texts, items: Iterable[Any], read: Callable[[Any], object]) -> Iterator[str]:
    """Read a text from each item of a file; the error for an item that holds no text names its place in the file."""
    for index, item in enumerate(items):
        try:
            text = read(item)
            if not isinstance(text, str):
                raise ValueError(f"holds a value of type {type(text).__name__}: each {texts.unit} must hold a string")
            text.encode()  # JSON escapes can stand for surrogates, which are not Unicode text.
        except ValueError as error:
            raise ValueError(f"{texts.place(index)} {_reason(error)}") from error
        yield text


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
