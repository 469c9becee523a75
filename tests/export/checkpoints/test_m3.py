"""The layers of FlagEmbedding are read beside an encoder; files and choices that do not fit them are refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from headwaiter_export.checkpoints.json_files import CheckpointError
from headwaiter_export.checkpoints.reader import read_checkpoint
from headwaiter_export.config.choices import Pooling
from tests.support.checkpoints import VOCABULARY, save_vit, write_json
from tests.support.export.helpers import assert_checkpoint_refused
from tests.support.export.m3_checkpoint import VECTOR_WIDTH, save_m3

pytestmark = [pytest.mark.filterwarnings("ignore")]
Tensors = dict[str, Any]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("m3") / "model"
    save_m3(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy of the checkpoint."""
    return shutil.copytree(saved, tmp_path / "model")


# The outputs of the model that sentence-transformers saves are compared in tests/e2e/test_m3.py.
def test_a_checkpoint_alone_is_the_model_that_sentence_transformers_saves(saved: Path, tmp_path: Path) -> None:
    save_m3(tmp_path / "alone", is_sentence_transformer=False)
    alone, expected = read_checkpoint(tmp_path / "alone"), read_checkpoint(saved)
    assert (alone.encoder.config.pooling, alone.encoder.config.normalize) == (Pooling.CLS, True)
    assert alone.encoder.config == expected.encoder.config
    weights = expected.encoder.state_dict()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in alone.encoder.state_dict().items())
    for text in (alone.text, expected.text):
        assert text is not None
        assert not text.pairs
        # BERT's tokenizer has no end token, so [SEP] has a weight.
        assert text.unweighted_ids == tuple(VOCABULARY.index(each) for each in ("[PAD]", "[UNK]", "[CLS]"))


@pytest.mark.parametrize("name", ["sparse_linear.pt", "colbert_linear.pt"])
def test_one_file_alone_changes_nothing(name: str, folder: Path) -> None:
    (folder / name).unlink()
    loaded = read_checkpoint(folder)
    assert loaded.encoder.config.head is None
    assert loaded.encoder.config.row_modules == ()
    assert loaded.text is not None
    assert loaded.text.unweighted_ids == ()


@pytest.mark.parametrize(
    "choices",
    [{"pooling": Pooling.MEAN}, {"pooling": Pooling.NONE}, {"normalize": False}, {"sparse": True}],
)
def test_a_choice_of_other_vectors_is_refused(choices: dict[str, Any], folder: Path) -> None:
    (folder / "modules.json").unlink()
    with pytest.raises(CheckpointError, match=r"sparse_linear\.pt and colbert_linear\.pt"):
        read_checkpoint(folder, **choices)


@pytest.mark.parametrize(
    ("file", "values"),
    [
        ("1_Pooling/config.json", {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}),
        ("modules.json", ["Transformer", "Pooling"]),
        ("modules.json", ["Transformer", "Pooling", "Dense", "Normalize"]),
    ],
)
def test_modules_of_other_vectors_are_refused(file: str, values: Any, folder: Path) -> None:
    if file == "modules.json":
        listed = [
            {
                "idx": i,
                "name": str(i),
                "path": f"{i}_{kind}" if i else "",
                "type": f"sentence_transformers.models.{kind}",
            }
            for i, kind in enumerate(values)
        ]
        values = listed
        write_json(folder / "2_Dense" / "config.json", {"in_features": 32, "out_features": 8})
    (folder / file).write_text(json.dumps(values))
    assert_checkpoint_refused(folder, "sparse_linear.pt", "unit length")


@pytest.mark.parametrize("name", ["sparse_linear.pt", "colbert_linear.pt"])
@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: tensors.pop("bias"),
        lambda tensors: tensors.pop("weight"),
        lambda tensors: tensors.update(other=torch.zeros(1)),
        lambda tensors: tensors.update(weight=tensors["weight"][:, 1:]),
        lambda tensors: tensors.update(weight=tensors["weight"][:0], bias=tensors["bias"][:0]),
        lambda tensors: tensors.update(weight=torch.tensor(1.0)),
        lambda tensors: tensors.update(weight=tensors["weight"].int()),
        lambda tensors: tensors.update(bias=torch.zeros(3)),
        lambda tensors: tensors["weight"].fill_(torch.nan),
        lambda tensors: tensors.update(weight=tensors["weight"].double() * 1e60),
    ],
)
def test_a_layer_with_other_tensors_is_named(name: str, change: Any, folder: Path) -> None:
    tensors: Tensors = torch.load(folder / name, weights_only=True)
    change(tensors)
    torch.save(tensors, folder / name)
    assert_checkpoint_refused(folder, name)


def test_a_layer_of_two_weights_a_token_is_refused(folder: Path) -> None:
    torch.save(torch.nn.Linear(32, 2).state_dict(), folder / "sparse_linear.pt")
    assert_checkpoint_refused(folder, "sparse_linear.pt", "2 weights")


def test_layers_in_half_precision_are_read_as_float32(folder: Path) -> None:
    layer = torch.load(folder / "colbert_linear.pt", weights_only=True)
    torch.save({name: tensor.half() for name, tensor in layer.items()}, folder / "colbert_linear.pt")
    dense = read_checkpoint(folder).encoder.get_parameter("row_modules.0.linear.weight")
    assert dense.dtype == torch.float32
    assert dense.shape == (VECTOR_WIDTH, 32)
    assert torch.equal(dense, layer["weight"].half().float())


def test_an_encoder_in_a_folder_of_its_own_is_refused(folder: Path) -> None:
    listed = json.loads((folder / "modules.json").read_text())
    listed[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(listed))
    shutil.copytree(folder, folder / "0_Transformer", ignore=shutil.ignore_patterns("*.pt", "[0-9]_*"))
    assert_checkpoint_refused(folder, "sparse_linear.pt")


def test_layers_beside_a_model_of_images_are_refused(folder: Path, tmp_path: Path) -> None:
    save_vit(tmp_path / "images")
    for name in ("sparse_linear.pt", "colbert_linear.pt"):
        shutil.copy(folder / name, tmp_path / "images")
    assert_checkpoint_refused(tmp_path / "images", "FlagEmbedding", "texts")


def test_a_default_prompt_that_flagembedding_ignores_is_said(folder: Path) -> None:
    prompts = {"prompts": {"query": "the bread "}, "default_prompt_name": "query"}
    write_json(folder / "config_sentence_transformers.json", prompts)
    assert any("'query'" in line for line in read_checkpoint(folder).assumptions)


def test_a_checkpoint_without_a_tokenizer_is_refused(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    assert_checkpoint_refused(folder, "FlagEmbedding", "tokenizer")
