"""Code of a checkpoint does not run, and the user is not asked whether to run it."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.support.checkpoints import write_json
from tests.support.export.helpers import changed_tensors
from tests.support.export.hub_checkpoints import save_new
from tests.support.export.tokenizer_folders import word_piece

# A module that leaves a file when it is imported, and a class that auto_map names.
CODE = """
from pathlib import Path
Path("code-has-run").touch()
from transformers import BertConfig
class NewConfig(BertConfig): model_type = "new"
"""
TEMPLATE = "{{ cycler.__init__.__globals__.os.system('touch code-has-run') }}"
PROGRAM = """
from pathlib import Path
from headwaiter_export.checkpoints.reader import read_checkpoint
print(read_checkpoint(Path("model")).text.max_tokens)
"""


@pytest.mark.usefixtures("starts_processes")
def test_code_of_a_checkpoint_does_not_run_for_a_user_who_answers_yes_to_every_question(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save_new(folder, vocab_size=1000, auto_map={"AutoConfig": "code.NewConfig", "AutoModel": "code.NewModel"})
    with changed_tensors(folder) as tensors:
        tensors["embeddings.word_embeddings.weight"] = torch.ones(1000, 32)
    word_piece().save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "BertTokenizer", "model_max_length": 20, "chat_template": TEMPLATE}
    write_json(folder / "tokenizer_config.json", settings)
    (folder / "code.py").write_text(CODE)
    (tmp_path / "home").mkdir()
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input="y\n" * 9,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": ":".join(sys.path), "HF_HOME": str(tmp_path / "home")},
        check=False,
    )
    # A question would be printed before the limit.
    assert (ran.returncode, ran.stdout) == (0, "20\n"), ran.stderr
    assert not (tmp_path / "code-has-run").exists()
