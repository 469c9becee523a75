"""headwaiter-export: a few lines on success, one sentence on refusal."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from headwaiter_export.cli import main
from tests.checkpoints import save_bert


def test_it_says_what_it_wrote_and_how_far_each_graph_is_from_pytorch(text_export: tuple[Path, str]) -> None:
    bundle, printed = text_export
    lines = printed.splitlines()
    assert lines[-1] == f"{bundle} is ready: headwaiter-server {bundle}"
    for graph in ("packed-cpu.fp32.onnx", "portable.fp32.onnx"):
        assert any(line.startswith(f"{graph}: differs from PyTorch by ") for line in lines)
    assert lines[0] == "int8: linear layers of the blocks that stay in float32: none"
    assert any(" sentences keep their nearest neighbour" in line for line in lines)
    assert any(line.startswith("attend.fp32.onnx: attention differs from PyTorch by ") for line in lines)
    assert len(lines) == 12


def test_what_is_refused_is_one_sentence_and_status_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_bert(tmp_path, hidden_act="mish")
    capsys.readouterr()  # transformers shows a progress bar
    assert main(["checkpoint", str(tmp_path), "-o", str(tmp_path / "bundle")]) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith(f"headwaiter-export: {tmp_path / 'config.json'} has hidden_act 'mish'")
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize("name", ["", " ", "two\nlines", "\udcff", 129 * "x"])
def test_a_name_that_no_log_or_label_could_hold_is_refused(
    name: str, text_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["checkpoint", str(text_checkpoint), "-o", str(tmp_path / "bundle"), "--name", name]) == 1
    assert capsys.readouterr().err == (
        f"headwaiter-export: the model's name is {name!r}: it must be 1 to 128 printable characters, not spaces alone\n"
    )
    assert not (tmp_path / "bundle").exists()


def test_wrong_usage_is_status_2() -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["checkpoint", "somewhere", "-o", "bundle", "--pooling", "sum"])
    assert exit_.value.code == 2


def test_without_its_extra_it_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else find_spec(name))
    assert main(["checkpoint", str(tmp_path), "-o", str(tmp_path / "bundle")]) == 1
    assert capsys.readouterr().err == "headwaiter-export: torch is not installed: pip install 'headwaiter[export]'\n"


def test_it_can_be_asked_for_help_without_torch() -> None:
    program = "import sys; from headwaiter_export.cli import main; assert 'torch' not in sys.modules; main(['--help'])"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("usage: headwaiter-export")
