"""Reading texts from files."""

import io
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.client.cli.conftest import Command, EncodeJob

JSONL = ["--field", "body"]
PARQUET = ["--column", "body"]
WIDE = [("one\n", encoding) for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be")]
WIDE += [("読む\n", "utf-16")]


def test_texts_are_read_from_a_field_of_json_lines(job: EncodeJob) -> None:
    job.texts.write_text('{"body": "b\\u00fc", "id": 1}\r\n{"id": 2, "body": "a\\nline"}', "utf-8")
    assert job.run(*JSONL) == 0
    assert job.fake.texts == ["a\nline", "bü"]


def test_a_field_or_a_row_may_hold_an_empty_text(job: EncodeJob) -> None:
    job.texts.write_text('{"body": ""}\n{"body": " "}')
    assert job.run(*JSONL) == 0
    _save_parquet(job.texts, ["", " "])
    assert job.run(*PARQUET, "--overwrite") == 0
    assert job.fake.texts == ["", "", " ", " "]
    assert np.load(job.out).shape == (2, 8)


@pytest.mark.parametrize(("content", "flags"), [("a\nb\ufeff", []), ('{"body": "a"}\n{"body": "b\ufeff"}', JSONL)])
def test_the_byte_order_mark_of_a_file_is_not_part_of_its_first_text(
    job: EncodeJob, content: str, flags: list[str]
) -> None:
    job.texts.write_text(content, "utf-8-sig")
    assert job.run(*flags) == 0
    assert job.fake.texts == ["a", "b\ufeff"]


@pytest.mark.parametrize("is_pipe", [False, True])
def test_parquet_is_read_from_standard_input(job: EncodeJob, monkeypatch: pytest.MonkeyPatch, *, is_pipe: bool) -> None:
    class Input(io.BytesIO):
        def seekable(self) -> bool:
            return not is_pipe

    _save_parquet(job.texts, ["one", "zwö"])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Input(job.texts.read_bytes())))
    job.texts = Path("-")
    assert job.run(*PARQUET) == 0
    assert job.fake.texts == ["one", "zwö"]


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
    job: EncodeJob, content: bytes, flags: list[str], facts: list[str]
) -> None:
    job.texts.write_bytes(content)
    _check_refusal(job, flags, facts)


@pytest.mark.parametrize(
    ("values", "column", "facts"),
    [
        (["one", None], "body", ["row 2 of {}", "NoneType"]),
        (["one"], "text", ["{}", "'text'"]),
        ([], "body", ["{}", "empty"]),
    ],
)
def test_the_error_for_a_column_that_does_not_hold_texts_names_the_column(
    job: EncodeJob, values: list[str | None], column: str, facts: list[str]
) -> None:
    _save_parquet(job.texts, values)
    _check_refusal(job, ["--column", column], facts)


def test_parquet_without_pyarrow_names_the_package(job: EncodeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SystemExit, match=r"--column .*pip install pyarrow"):
        job.run(*PARQUET)


@pytest.mark.parametrize(("name", "flag"), [("texts.jsonl", "--field"), ("texts.parquet", "--column")])
def test_a_file_with_the_suffix_of_another_format_needs_a_flag(name: str, flag: str, command: Command) -> None:
    error = command.refusal("encode", name, "-o", "out.npy")
    assert error.startswith(f"{name} ")
    assert flag in error


def _check_refusal(job: EncodeJob, flags: list[str], facts: list[str]) -> None:
    error = job.refusal(*flags)
    assert error.startswith(facts[0].format(job.texts))
    for fact in facts[1:]:
        assert fact in error
    assert job.fake.requests == []


def _save_parquet(file: Path, values: list[str | None]) -> None:
    parquet.write_table(pa.table({"id": range(len(values)), "body": pa.array(values, pa.string())}), file)
