"""Texts as files hold them: a line each, a field of JSON Lines, or a column of parquet."""

import argparse
import io
import json
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

# Without them, files of these names would be taken for plain lines.
_FLAGS = {".jsonl": "--field", ".parquet": "--column"}


@dataclass(frozen=True)
class Texts:
    """Texts, and where they stand.

    Attributes:
        source: what holds them.
        unit: what each is there.
        values: the texts.
    """

    source: str
    unit: str
    values: list[str]

    def place(self, index: int) -> str:
        """Returns where a text stands."""
        return f"{self.unit} {index + 1} of {self.source}"


def read_texts(arguments: argparse.Namespace) -> Texts:
    """Reads the file that the flags of `add_text_flags` name, all of it.

    Raises:
        OSError: it cannot be read.
        ValueError: a line or row of it is no text.
        SystemExit: it is parquet, and pyarrow is not installed.
    """
    file, field, column = arguments.file, arguments.field, arguments.column
    flag = _FLAGS.get(Path(file).suffix)
    if flag and not (field or column):
        raise ValueError(f"{file}: {flag} has to name what holds the texts")
    source = "standard input" if file == "-" else file
    with nullcontext(sys.stdin.buffer) if file == "-" else Path(file).open("rb") as stream:
        if column:
            return _checked(source, "row", _column(stream, source, column), lambda value: value)
        return _checked(source, "line", stream, partial(_field, name=field) if field else _line)


def _checked(source: str, unit: str, items: Iterable[Any], read: Callable[[Any], object]) -> Texts:
    """Reads items, and says of the first that is no text where it stands."""
    texts = Texts(source, unit, [])
    for item in items:
        try:
            text = read(item)
            if not isinstance(text, str):
                raise ValueError(f"holds a value of type {type(text).__name__}; texts are strings")
            if not text.strip():
                raise ValueError(f"is empty: each {unit} is a text")
            text.encode()  # JSON can say what is no Unicode.
        except ValueError as error:
            raise ValueError(f"{texts.place(len(texts.values))} {_what(error)}") from error
        texts.values.append(text)
    if not texts.values:
        raise ValueError(f"{source} is empty: it needs one text a {unit}")
    return texts


def _what(error: ValueError) -> str:
    if isinstance(error, UnicodeError):
        return "is not Unicode text in UTF-8"
    return f"is not JSON: {error.msg}" if isinstance(error, json.JSONDecodeError) else str(error)


def _line(line: bytes) -> str:
    # Lines end as bytes do: not at form feeds and Unicode's separators, and not as the locale has it.
    return line.removesuffix(b"\n").removesuffix(b"\r").decode()


def _field(line: bytes, name: str) -> object:
    if not line.strip():
        raise ValueError(f"is empty: each line is an object with the field {name!r}")
    record = json.loads(_line(line))
    if not isinstance(record, dict) or name not in record:
        raise ValueError(f"has no field {name!r}")
    return record[name]


def _column(stream: BinaryIO, source: str, name: str) -> Iterable[object]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise SystemExit("headwaiter-client: --column reads parquet with pyarrow: pip install pyarrow") from None
    try:
        # Parquet is read from its end, where a pipe cannot go.
        table = parquet.ParquetFile(stream if stream.seekable() else io.BytesIO(stream.read())).read(columns=[name])
    except ValueError as error:
        raise ValueError(f"{source} is not parquet: {error}") from error
    if name not in table.column_names:
        raise ValueError(f"{source} has no column {name!r}")
    values: list[object] = table[name].to_pylist()
    return values
