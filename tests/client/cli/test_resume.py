"""What `encode` keeps where it is interrupted, and what it makes of that."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwaiter_client import Client, FakeEncoder
from headwaiter_client.cli import main
from headwaiter_proto import encoder_pb2 as pb
from tests.client.cli.conftest import Lasting, connect


@pytest.fixture
def out(fake: Lasting, six: Path, tmp_path: Path) -> Path:
    """Where four texts of six had been encoded when it was interrupted."""
    out = tmp_path / "out.npy"
    fake.at["text 4"] = KeyboardInterrupt()
    assert main(["encode", str(six), "-o", str(out)]) == 130
    fake.at.clear()
    fake.requests.clear()
    return out


@pytest.mark.parametrize(("flags", "command"), [([], ""), (["--restart"], " without --restart")])
def test_an_interruption_says_how_to_go_on_and_leaves_no_half_result(
    fake: Lasting, six: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], command: str
) -> None:
    out = tmp_path / "out.npy"
    fake.at["text 4"] = KeyboardInterrupt()
    assert main(["encode", str(six), "-o", str(out), *flags]) == 130
    advice = f"the same command{command} goes on where it stopped"
    assert capsys.readouterr() == ("", f"headwaiter-client: interrupted: {advice}\n")
    assert _files(out) == ["out.npy.journal", "out.npy.partial"]


def test_the_same_call_encodes_what_is_left(
    out: Path, fake: Lasting, six: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["encode", str(six), "-o", str(out)]) == 0
    assert fake.texts == ["text 4", "text 5"]
    assert capsys.readouterr().out.startswith("6 sentences (4 of them before), 8 tokens, ")
    np.testing.assert_array_equal(np.load(out), _expected(six))
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
def test_what_is_there_counts_up_to_the_first_text_that_is_another(
    out: Path, fake: Lasting, six: Path, lines: list[str], sent: list[str]
) -> None:
    six.write_text("\n".join(lines))
    assert main(["encode", str(six), "-o", str(out)]) == 0
    assert fake.texts == sent
    np.testing.assert_array_equal(np.load(out), _expected(six))


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        (["--dtype", "float16"], "dtype was 'float32' and is 'float16'"),
        (["--prompt", "query", "--dimensions", "3"], "prompt was '' and is 'query', dimensions was None and is 3"),
    ],
)
def test_rows_of_other_options_are_neither_mixed_nor_lost_unless_that_is_asked_for(
    out: Path, fake: Lasting, six: Path, options: list[str], difference: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    command = ["encode", str(six), "-o", str(out), *options]
    assert main(command) == 1
    assert capsys.readouterr().err == (
        f"headwaiter-client: {out}.partial holds 4 rows of another call, where {difference}: repeat that call to go on "
        "with it, or drop its rows with --restart\n"
    )
    assert main(["encode", str(six), "-o", str(out)]) == 0
    assert fake.texts == ["text 4", "text 5"]
    fake.at["text 4"] = KeyboardInterrupt()
    assert main(["encode", str(six), "-o", str(out)]) == 130
    fake.at.clear()
    fake.requests.clear()
    assert main([*command, "--restart"]) == 0
    assert len(fake.texts) == len(np.load(out)) == 6


def test_what_was_not_too_long_counts_where_the_rest_is_cut(out: Path, fake: Lasting, six: Path) -> None:
    command = ["encode", str(six), "-o", str(out), "--truncation", "right"]
    fake.at["text 5"] = KeyboardInterrupt()
    fake.at["text 4"] = KeyboardInterrupt()
    assert main(command) == 130
    fake.at.clear()
    assert main([*command[:-2], "--truncation", "left"]) == 1
    assert main(command) == 0
    assert fake.texts == ["text 4", "text 5"]
    np.testing.assert_array_equal(np.load(out), _expected(six))


def test_rows_of_another_file_are_not_lost(out: Path, six: Path, capsys: pytest.CaptureFixture[str]) -> None:
    six.write_text("something else\n")
    assert main(["encode", str(six), "-o", str(out)]) == 1
    assert "another call, where the first text is another" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("other", "name"), [({"model": "other"}, "model"), ({"precision": pb.PRECISION_INT8}, "precision")]
)
def test_rows_of_another_model_or_precision_do_not_mix(
    out: Path,
    six: Path,
    other: dict[str, Any],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    connect(monkeypatch, Lasting(**other))
    assert main(["encode", str(six), "-o", str(out)]) == 1
    assert f"another call, where {name} was '" in capsys.readouterr().err


@pytest.mark.parametrize("file", ["out.npy.partial", "out.npy.journal"])
@pytest.mark.parametrize("lost_bytes", [1, 10_000])
def test_a_row_that_was_not_written_to_its_end_does_not_count(
    out: Path, fake: Lasting, six: Path, file: str, lost_bytes: int
) -> None:
    damaged = out.with_name(file)
    damaged.write_bytes(damaged.read_bytes()[:-lost_bytes])
    assert main(["encode", str(six), "-o", str(out)]) == 0
    assert len(fake.texts) == (3 if lost_bytes == 1 else 6)
    np.testing.assert_array_equal(np.load(out), _expected(six))


def test_what_came_before_a_bad_line_is_kept_until_it_is_mended(
    fake: Lasting, six: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["encode", str(six), "-o", str(tmp_path / "out.npy")]
    good = six.read_text()
    six.write_text(good.replace("text 5", "a b c d e f g h"))
    for _ in range(2):  # The line's number is the same where part of the file was done before.
        assert main(command) == 1
        error = capsys.readouterr().err
        assert error.startswith(f"headwaiter-client: line 6 of {six} has 10 tokens")
        assert all(text in error for text in ("at most 8", "--truncation"))
    fake.requests.clear()
    six.write_text(good)
    assert main(command) == 0
    assert fake.texts == ["text 4", "text 5"]


def test_a_call_that_got_nothing_leaves_nothing(
    fake: Lasting, six: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.at["text 0"] = KeyboardInterrupt()
    assert main(["encode", str(six), "-o", str(tmp_path / "out.npy")]) == 130
    assert capsys.readouterr().err == "headwaiter-client: interrupted\n"
    assert _files(tmp_path / "out.npy") == []


def test_vectors_of_two_models_are_not_mixed(
    fake: Lasting, six: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Client(transport=FakeEncoder(model="before")).model()
    monkeypatch.setattr("headwaiter_client.cli.encode.describe", lambda _: before)
    assert main(["encode", str(six), "-o", str(tmp_path / "out.npy")]) == 1
    assert "in fp32 answered in place of before " in capsys.readouterr().err


def _files(out: Path) -> list[str]:
    return sorted(path.name for path in out.parent.glob("out.npy*"))


def _expected(file: Path) -> object:
    return Client(transport=FakeEncoder()).encode(file.read_text().splitlines()).pooled
