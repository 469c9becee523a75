"""headwaiter-export prints a line for each step, or one line for an error."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headwaiter_export.cli import main
from tests.export.conftest import Refused
from tests.support.checkpoints import save_bert


def test_the_export_prints_the_bundle_and_the_difference_of_each_graph(text_export: tuple[Path, str]) -> None:
    bundle, printed = text_export
    lines = printed.splitlines()
    assert f"headwaiter-server {bundle}" in lines[-1]
    for graph in ("packed-cpu.fp32.onnx", "portable.fp32.onnx"):
        (line,) = (line for line in lines if line.startswith(f"{graph}: "))
        pooled, hidden, cosine = map(float, re.findall(r"at (?:most|least) (\S+)", line))
        assert pooled <= 1e-5
        assert hidden <= 1e-4
        assert cosine >= 0.99999
    (weights,) = (line for line in lines if line.startswith("attend.fp32.onnx: "))
    assert float(weights.split()[-1]) <= 1e-5
    assert lines[:3] == [
        "all tokens have type 0, one of 2 token types",
        "texts have at most 32 tokens, max_seq_length of sentence_bert_config.json",
        "hidden rows do not depend on tensors pooler.…: they are left out",
    ]
    assert [line.split(": ")[0] for line in lines[3:5]] == ["fp16", "norms on CUDA"]
    assert any("packed-cpu.int8.onnx" in line and "%" in line for line in lines)
    assert sum(line.startswith("largest difference from transformers: ") for line in lines) == 1
    assert len(lines) == 18


@pytest.mark.usefixtures("runs_transformers")
def test_an_error_is_one_line_and_status_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_bert(tmp_path, position_embedding_type="relative_key")
    capsys.readouterr()  # transformers shows a progress bar
    assert main(["checkpoint", str(tmp_path), "-o", str(tmp_path / "bundle")]) == 1
    printed = capsys.readouterr()
    for fact in ("headwaiter-export: ", str(tmp_path / "config.json"), "position_embedding_type", "relative_key"):
        assert fact in printed.err
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize("name", ["", " ", "two\nlines", "\udcff", 129 * "x"])
def test_a_name_unfit_for_logs_and_labels_is_refused(name: str, text_checkpoint: Path, refused: Refused) -> None:
    refused(["checkpoint", text_checkpoint, "--name", name], repr(name), "128")


def test_wrong_usage_is_status_2() -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["checkpoint", "somewhere", "-o", "bundle", "--pooling", "sum"])
    assert exit_.value.code == 2


@pytest.mark.parametrize(
    ("flags", "facts"),
    [
        (["--question", "{query} {document}"], ["--words"]),
        (["--words", "yes", "no"], ["--question"]),
        (["--question", "{query} {document}", "--words", "a", "b", "c"], ["--words", "3", "one or two"]),
        (["--question", "{query} {document}", "--words", "yes", "no", "--pooling", "splade"], ["--question", "splade"]),
    ],
)
def test_flags_that_do_not_fit_together_are_refused(
    flags: list[str], facts: list[str], tmp_path: Path, refused: Refused
) -> None:
    (tmp_path / "config.json").touch()
    refused(["checkpoint", tmp_path, *flags], *facts)


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else find_spec(name))
    refused(["checkpoint", tmp_path], "torch", "headwaiter[export]")


@pytest.mark.usefixtures("starts_processes")
def test_help_works_without_torch() -> None:
    program = "import sys; from headwaiter_export.cli import main; assert 'torch' not in sys.modules; main(['--help'])"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("usage: headwaiter-export")
