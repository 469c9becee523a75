"""An interrupted `encode`, and the run that resumes it."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwaiter_client import Client, FakeEncoder
from headwaiter_client.cli import main
from headwaiter_proto import encoder_pb2 as pb
from tests.client.cli.conftest import ReusableFake, connect


@pytest.fixture
def out(fake: ReusableFake, six_texts: Path, tmp_path: Path) -> Path:
    """The output path of a run that was interrupted after four of six texts."""
    out = tmp_path / "out.npy"
    fake.errors_by_text["text 4"] = KeyboardInterrupt()
    assert main(["encode", str(six_texts), "-o", str(out)]) == 130
    fake.errors_by_text.clear()
    fake.requests.clear()
    return out


@pytest.mark.parametrize("flags", [[], ["--restart"]])
def test_an_interrupted_run_says_how_to_resume_and_leaves_no_output_file(
    fake: ReusableFake, six_texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    out = tmp_path / "out.npy"
    fake.errors_by_text["text 4"] = KeyboardInterrupt()
    assert main(["encode", str(six_texts), "-o", str(out), *flags]) == 130
    output, error = capsys.readouterr()
    assert output == ""
    assert error.startswith("headwaiter-client: interrupted: ")
    assert ("--restart" in error) == bool(flags)
    assert _files(out) == ["out.npy.journal", "out.npy.partial"]


@pytest.mark.parametrize("flags", [[], ["--model", "fake"]])
def test_the_same_command_encodes_only_the_remaining_texts(
    out: Path, fake: ReusableFake, six_texts: Path, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["encode", str(six_texts), "-o", str(out), *flags]) == 0
    assert fake.texts == ["text 4", "text 5"]
    assert re.findall(r"\d+", capsys.readouterr().out)[:3] == ["6", "4", "8"]
    np.testing.assert_array_equal(np.load(out), _expected(six_texts))
    assert _files(out) == ["out.npy"]


@pytest.mark.parametrize(
    ("lines", "sent"),
    [
        (["text 0", "text 1", "other", "text 3", "text 4"], ["other", "text 3", "text 4"]),
        (["text 0", "text 1", "text 2", "text 3"], []),
        (["text 0", "text 1", "text 2"], []),
        ([f"text {number}" for number in range(12)], [f"text {number}" for number in (10, 11, 4, 5, 6, 7, 8, 9)]),
    ],
)
def test_rows_are_kept_up_to_the_first_text_that_differs(
    out: Path, fake: ReusableFake, six_texts: Path, lines: list[str], sent: list[str]
) -> None:
    six_texts.write_text("\n".join(lines))
    assert main(["encode", str(six_texts), "-o", str(out)]) == 0
    assert fake.texts == sent
    np.testing.assert_array_equal(np.load(out), _expected(six_texts))


@pytest.mark.parametrize(
    ("options", "differences"),
    [
        (["--dtype", "float16"], ["dtype was 'float32'", "'float16'"]),
        (["--prompt", "query", "--dimensions", "3"], ["prompt was ''", "'query'", "dimensions was None", "3"]),
    ],
)
def test_rows_of_other_options_are_kept_unless_restart_is_set(
    out: Path,
    fake: ReusableFake,
    six_texts: Path,
    options: list[str],
    differences: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    capsys.readouterr()
    command = ["encode", str(six_texts), "-o", str(out), *options]
    assert main(command) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"headwaiter-client: {out}.partial holds 4 rows")
    for fact in (*differences, "--restart"):
        assert fact in error
    assert main(["encode", str(six_texts), "-o", str(out)]) == 0
    assert fake.texts == ["text 4", "text 5"]
    out.unlink()
    fake.errors_by_text["text 4"] = KeyboardInterrupt()
    assert main(["encode", str(six_texts), "-o", str(out)]) == 130
    fake.errors_by_text.clear()
    fake.requests.clear()
    assert main([*command, "--restart"]) == 0
    assert len(fake.texts) == len(np.load(out)) == 6


def test_resuming_with_truncation_keeps_the_vectors_that_needed_no_truncation(
    out: Path, fake: ReusableFake, six_texts: Path
) -> None:
    command = ["encode", str(six_texts), "-o", str(out), "--truncation", "right"]
    fake.errors_by_text["text 5"] = KeyboardInterrupt()
    fake.errors_by_text["text 4"] = KeyboardInterrupt()
    assert main(command) == 130
    fake.errors_by_text.clear()
    assert main([*command[:-2], "--truncation", "left"]) == 1
    assert main(command) == 0
    assert fake.texts == ["text 4", "text 5"]
    np.testing.assert_array_equal(np.load(out), _expected(six_texts))


def test_rows_of_another_file_are_kept(out: Path, six_texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    six_texts.write_text("something else\n")
    assert main(["encode", str(six_texts), "-o", str(out)]) == 1
    assert f"{out}.partial holds 4 rows" in capsys.readouterr().err
    assert _files(out) == ["out.npy.journal", "out.npy.partial"]


@pytest.mark.parametrize(
    ("other", "name"), [({"model": "other"}, "model"), ({"precision": pb.PRECISION_INT8}, "precision")]
)
def test_rows_of_another_model_or_precision_are_not_mixed(
    out: Path,
    six_texts: Path,
    other: dict[str, Any],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    connect(monkeypatch, ReusableFake(**other))
    assert main(["encode", str(six_texts), "-o", str(out)]) == 1
    error = capsys.readouterr().err
    assert f"{out}.partial holds 4 rows" in error
    assert f"{name} was '" in error


@pytest.mark.parametrize("file", ["out.npy.partial", "out.npy.journal"])
@pytest.mark.parametrize("lost_bytes", [1, 10_000])
def test_a_row_that_was_not_written_completely_is_encoded_again(
    out: Path, fake: ReusableFake, six_texts: Path, file: str, lost_bytes: int
) -> None:
    damaged = out.with_name(file)
    damaged.write_bytes(damaged.read_bytes()[:-lost_bytes])
    assert main(["encode", str(six_texts), "-o", str(out)]) == 0
    assert len(fake.texts) == (3 if lost_bytes == 1 else 6)
    np.testing.assert_array_equal(np.load(out), _expected(six_texts))


def test_rows_before_a_bad_line_are_kept_until_the_line_is_fixed(
    fake: ReusableFake, six_texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["encode", str(six_texts), "-o", str(tmp_path / "out.npy")]
    good = six_texts.read_text()
    six_texts.write_text(good.replace("text 5", "a b c d e f g h"))
    for _ in range(2):  # A resumed run counts lines from the start of the file, too.
        assert main(command) == 1
        error = capsys.readouterr().err
        assert error.startswith(f"headwaiter-client: line 6 of {six_texts} has 10 tokens")
        for fact in ("8", "--truncation"):
            assert fact in error
    fake.requests.clear()
    six_texts.write_text(good)
    assert main(command) == 0
    assert fake.texts == ["text 4", "text 5"]


def test_a_run_that_encoded_nothing_leaves_no_files(
    fake: ReusableFake, six_texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.errors_by_text["text 0"] = KeyboardInterrupt()
    assert main(["encode", str(six_texts), "-o", str(tmp_path / "out.npy")]) == 130
    assert capsys.readouterr().err == "headwaiter-client: interrupted\n"
    assert _files(tmp_path / "out.npy") == []


def test_vectors_of_two_models_are_not_mixed_in_one_run(
    fake: ReusableFake,
    six_texts: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = Client(transport=FakeEncoder(model="before")).model()
    monkeypatch.setattr("headwaiter_client.cli.encode_texts.text_model", lambda *_: before)
    assert main(["encode", str(six_texts), "-o", str(tmp_path / "out.npy")]) == 1
    error = capsys.readouterr().err
    assert "fake" in error
    assert "before" in error


def _files(out: Path) -> list[str]:
    return sorted(path.name for path in out.parent.glob("out.npy*"))


def _expected(file: Path) -> object:
    return Client(transport=FakeEncoder()).encode(file.read_text().splitlines()).pooled
