"""The files that texts are read from."""

import io
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from headwaiter_client.cli import main
from tests.client.cli.conftest import Lasting

JSONL = ["--field", "body"]
PARQUET = ["--column", "body"]


def test_the_texts_of_json_lines_are_a_field_of_theirs(fake: Lasting, tmp_path: Path) -> None:
    (tmp_path / "texts").write_text('{"body": "b\\u00fc", "id": 1}\r\n{"id": 2, "body": "a\\nline"}', "utf-8")
    assert _encode(tmp_path, *JSONL) == 0
    assert fake.texts == ["a\nline", "bü"]


def test_the_texts_of_parquet_are_a_column_of_its(fake: Lasting, tmp_path: Path) -> None:
    _save_parquet(tmp_path / "texts", ["one", "zwö"])
    assert _encode(tmp_path, *PARQUET) == 0
    assert fake.texts == ["one", "zwö"]


def test_parquet_may_come_through_a_pipe(fake: Lasting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    _save_parquet(tmp_path / "texts", ["one"])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Pipe((tmp_path / "texts").read_bytes())))
    assert main(["encode", "-", "-o", str(tmp_path / "out.npy"), *PARQUET]) == 0
    assert fake.texts == ["one"]


@pytest.mark.parametrize(
    ("content", "flags", "complaint"),
    [
        (b"one\n\nthree\n", [], "line 2 of {} is empty: each line is a text"),
        (b"one\n \t\nthree\n", [], "line 2 of {} is empty: each line is a text"),
        (b"one\n\xff", [], "line 2 of {} is not Unicode text in UTF-8"),
        (b"", [], "{} is empty: it needs one text a line"),
        (b'{"body": "a"}\n{"body": ', JSONL, "line 2 of {} is not JSON: Expecting value"),
        (b'{"body": "a"}\n\n', JSONL, "line 2 of {} is empty: each line is an object with the field 'body'"),
        (b'{"text": "a"}', JSONL, "line 1 of {} has no field 'body'"),
        (b'"body"', JSONL, "line 1 of {} has no field 'body'"),
        (b'{"body": "\\ud800"}', JSONL, "line 1 of {} is not Unicode text in UTF-8"),
        (b'{"body": 3}', JSONL, "line 1 of {} holds a value of type int; texts are strings"),
        (b'{"body": "a"}\n{"body": ""}', JSONL, "line 2 of {} is empty: each line is a text"),
        (b"no parquet", PARQUET, "{} is not parquet: "),
    ],
)
def test_what_is_no_text_is_named_before_anything_is_sent(
    fake: Lasting,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    content: bytes,
    flags: list[str],
    complaint: str,
) -> None:
    (tmp_path / "texts").write_bytes(content)
    assert _encode(tmp_path, *flags) == 1
    said = capsys.readouterr().err
    assert said.startswith("headwaiter-client: " + complaint.format(tmp_path / "texts"))
    assert said.count("\n") == 1
    assert fake.requests == []


@pytest.mark.parametrize(
    ("values", "column", "complaint"),
    [
        (["one", None], "body", "row 2 of {} holds a value of type NoneType; texts are strings"),
        (["one", " "], "body", "row 2 of {} is empty: each row is a text"),
        (["one"], "text", "{} has no column 'text'"),
        ([], "body", "{} is empty: it needs one text a row"),
    ],
)
def test_what_is_no_column_of_texts_is_named(
    fake: Lasting,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    values: list[str | None],
    column: str,
    complaint: str,
) -> None:
    _save_parquet(tmp_path / "texts", values)
    assert _encode(tmp_path, "--column", column) == 1
    assert capsys.readouterr().err == f"headwaiter-client: {complaint.format(tmp_path / 'texts')}\n"


def test_parquet_names_what_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _save_parquet(tmp_path / "texts", ["one"])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SystemExit, match="--column reads parquet with pyarrow: pip install pyarrow"):
        _encode(tmp_path, *PARQUET)


@pytest.mark.parametrize(("name", "flag"), [("texts.jsonl", "--field"), ("texts.parquet", "--column")])
def test_a_file_that_is_not_of_lines_by_its_name_needs_a_flag(
    name: str, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["encode", name, "-o", "out.npy"]) == 1
    assert capsys.readouterr().err == f"headwaiter-client: {name}: {flag} has to name what holds the texts\n"


def _encode(folder: Path, *flags: str) -> int:
    return main(["encode", str(folder / "texts"), "-o", str(folder / "out.npy"), *flags])


def _save_parquet(file: Path, values: list[str | None]) -> None:
    parquet.write_table(pa.table({"id": range(len(values)), "body": pa.array(values, pa.string())}), file)
