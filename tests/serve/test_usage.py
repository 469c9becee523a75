"""Wrong usage of `headwaiter serve` is told before anything is read."""

import dataclasses
import sys
from pathlib import Path

import pytest

from headwaiter_export import cli as export_cli
from headwaiter_serve.cli import EXPORT_FLAGS, main
from headwaiter_server.settings.flags import Settings, flag

# What `headwaiter serve` itself decides, and the second reference of ONNX files.
OWN = {"-h", "--help", "-o", "--output", "--name", "--precision", "--graphs", "--pytorch"}


@pytest.mark.parametrize(
    ("arguments", "words", "others"),
    [((), "MODEL", "FLAGS\n"), (("--threads", "2", "my-model"), "headwaiter serve MODEL --threads", "did you mean")],
    ids=["no model", "flags before the model"],
)
def test_the_model_comes_first(
    arguments: tuple[str, ...],
    words: str,
    others: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["headwaiter", "serve", *arguments])
    with pytest.raises(SystemExit) as raised:
        main()
    assert raised.value.code == 2
    error = capsys.readouterr().err.partition("error: ")[2]
    assert words in error
    assert others not in error


def test_the_flags_of_the_export_are_taken_unless_the_server_has_the_name() -> None:
    (commands,) = (each for each in export_cli._parser()._actions if isinstance(each.choices, dict))
    assert isinstance(commands.choices, dict)
    parsers = (commands.choices[name] for name in ("checkpoint", "onnx"))
    names = {name for parser in parsers for action in parser._actions for name in action.option_strings}
    assert set(EXPORT_FLAGS) == names - OWN
    assert not set(EXPORT_FLAGS) & {flag(field.name) for field in dataclasses.fields(Settings)}


def test_a_bundle_takes_no_flags_of_the_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "manifest.json").touch()
    monkeypatch.setattr(sys, "argv", ["headwaiter", "serve", str(tmp_path), "--threads", "1", "--pooling", "cls"])
    assert main() == 2
    assert "--pooling" in capsys.readouterr().err
