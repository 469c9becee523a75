"""Reading texts from files."""

import io
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from headwaiter_client.cli import main
from tests.client.cli.conftest import ReusableFake

JSONL = ["--field", "body"]
PARQUET = ["--column", "body"]
WIDE = [("one\n", encoding) for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be")]
WIDE += [("読む\n", "utf-16")]


def test_texts_are_read_from_a_field_of_json_lines(fake: ReusableFake, tmp_path: Path) -> None:
    (tmp_path / "texts").write_text('{"body": "b\\u00fc", "id": 1}\r\n{"id": 2, "body": "a\\nline"}', "utf-8")
    assert _encode(tmp_path, *JSONL) == 0
    assert fake.texts == ["a\nline", "bü"]


def test_a_field_or_a_row_may_hold_an_empty_text(fake: ReusableFake, tmp_path: Path) -> None:
    (tmp_path / "texts").write_text('{"body": ""}\n{"body": " "}')
    assert _encode(tmp_path, *JSONL) == 0
    _save_parquet(tmp_path / "texts", ["", " "])
    assert _encode(tmp_path, *PARQUET, "--overwrite") == 0
    assert fake.texts == ["", "", " ", " "]
    assert np.load(tmp_path / "out.npy").shape == (2, 8)


@pytest.mark.parametrize(("content", "flags"), [("a\nb\ufeff", []), ('{"body": "a"}\n{"body": "b\ufeff"}', JSONL)])
def test_the_byte_order_mark_of_a_file_is_not_part_of_its_first_text(
    fake: ReusableFake, tmp_path: Path, content: str, flags: list[str]
) -> None:
    (tmp_path / "texts").write_text(content, "utf-8-sig")
    assert _encode(tmp_path, *flags) == 0
    assert fake.texts == ["a", "b\ufeff"]


def test_texts_are_read_from_a_column_of_parquet(fake: ReusableFake, tmp_path: Path) -> None:
    _save_parquet(tmp_path / "texts", ["one", "zwö"])
    assert _encode(tmp_path, *PARQUET) == 0
    assert fake.texts == ["one", "zwö"]


def test_parquet_is_read_from_a_pipe(fake: ReusableFake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    _save_parquet(tmp_path / "texts", ["one"])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Pipe((tmp_path / "texts").read_bytes())))
    assert main(["encode", "-", "-o", str(tmp_path / "out.npy"), *PARQUET]) == 0
    assert fake.texts == ["one"]


@pytest.mark.parametrize(
    ("content", "flags", "facts"),
    [
        (b"one\n\nthree\n", [], ["line 2 of {}", "empty"]),
        (b"one\n \t\nthree\n", [], ["line 2 of {}", "empty"]),
        (b"one\n\xff", [], ["line 2 of {}", "UTF-8"]),
        (b"", [], ["{}", "empty"]),
        ("\ufeff".encode(), [], ["line 1 of {}", "empty"]),
        *((text.encode(encoding), [], ["line 1 of {}", "UTF-16"]) for text, encoding in WIDE),
        (b"one\n" + "two".encode("utf-16-le"), [], ["line 2 of {}", "UTF-16"]),
        ('{"body": "a"}'.encode("utf-16"), JSONL, ["line 1 of {}", "UTF-16"]),
        (b'{"body": "a"}\n{"body": ', JSONL, ["line 2 of {}", "JSON", "Expecting value"]),
        (b'{"body": "a"}\n\n', JSONL, ["line 2 of {}", "empty", "'body'"]),
        (b'{"text": "a"}', JSONL, ["line 1 of {}", "'body'"]),
        (b'"body"', JSONL, ["line 1 of {}", "'body'"]),
        (b'{"body": "\\ud800"}', JSONL, ["line 1 of {}", "UTF-8"]),
        (b'{"body": 3}', JSONL, ["line 1 of {}", "int"]),
        (b"no parquet", PARQUET, ["{}", "not parquet"]),
    ],
)
def test_a_line_that_is_not_a_text_is_refused_before_any_request(
    fake: ReusableFake,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    content: bytes,
    flags: list[str],
    facts: list[str],
) -> None:
    (tmp_path / "texts").write_bytes(content)
    assert _encode(tmp_path, *flags) == 1
    error = capsys.readouterr().err
    assert error.startswith("headwaiter-client: " + facts[0].format(tmp_path / "texts"))
    for fact in facts[1:]:
        assert fact in error
    assert error.count("\n") == 1
    assert fake.requests == []


@pytest.mark.parametrize(
    ("values", "column", "facts"),
    [
        (["one", None], "body", ["row 2 of {}", "NoneType"]),
        (["one"], "text", ["{}", "'text'"]),
        ([], "body", ["{}", "empty"]),
    ],
)
def test_the_error_for_a_column_that_does_not_hold_texts_names_the_column(
    fake: ReusableFake,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    values: list[str | None],
    column: str,
    facts: list[str],
) -> None:
    _save_parquet(tmp_path / "texts", values)
    assert _encode(tmp_path, "--column", column) == 1
    error = capsys.readouterr().err
    assert error.startswith("headwaiter-client: " + facts[0].format(tmp_path / "texts"))
    for fact in facts[1:]:
        assert fact in error


def test_parquet_without_pyarrow_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _save_parquet(tmp_path / "texts", ["one"])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SystemExit, match=r"--column .*pip install pyarrow"):
        _encode(tmp_path, *PARQUET)


@pytest.mark.parametrize(("name", "flag"), [("texts.jsonl", "--field"), ("texts.parquet", "--column")])
def test_a_file_with_the_suffix_of_another_format_needs_a_flag(
    name: str, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["encode", name, "-o", "out.npy"]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"headwaiter-client: {name} ")
    assert flag in error


def _encode(folder: Path, *flags: str) -> int:
    return main(["encode", str(folder / "texts"), "-o", str(folder / "out.npy"), *flags])


def _save_parquet(file: Path, values: list[str | None]) -> None:
    parquet.write_table(pa.table({"id": range(len(values)), "body": pa.array(values, pa.string())}), file)
