"""What the files beside an ONNX file and the caller say of it is followed as for a checkpoint, or refused."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from headwaiter_export.cli import main
from headwaiter_proto.encoder_pb2 import SCORE_FUNCTION_IDENTITY
from headwaiter_server.runtime.bundle import Bundle
from headwaiter_server.runtime.model import open_model
from headwaiter_server.runtime.packing import pack
from tests.export.conftest import Refused
from tests.support.checkpoints import VOCABULARY, save_bert, save_sentence_transformer, save_vit, write_json
from tests.support.export.helpers import assert_close_to_scale, edit_json, save_dense
from tests.support.export.onnx_files import Pooled, run_file, save_classifier, save_files, write_onnx

pytestmark = pytest.mark.usefixtures("runs_graphs", "runs_transformers")


def export(path: Path, *flags: str) -> int:
    return main(["onnx", str(path), "-o", str(path.parent / "bundle"), *flags])


@pytest.mark.parametrize("has_config", [True, False])
def test_modules_and_limits_of_an_unknown_type_are_followed(has_config: bool, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    file = save_files(folder)
    save_sentence_transformer(folder, modules=("Transformer", "Pooling", "Dense", "Normalize"))
    tensors = save_dense(folder / "2_Dense", 20, bias=True)
    edit_json(folder / "config.json", model_type="unheard-of")
    (folder / "modules.json").write_text((folder / "modules.json").read_text().replace('""', '"0_Transformer"'))
    (folder / "0_Transformer").mkdir()
    for name in ("config.json", "tokenizer.json", "sentence_bert_config.json"):
        (folder / name).rename(folder / "0_Transformer" / name)
    if not has_config:
        (folder / "0_Transformer" / "config.json").unlink()
    assert export(folder, *([] if has_config else ["--max-tokens", "64"])) == 0
    model = open_model(tmp_path / "bundle", "cpu", "auto", threads=1)
    manifest = model.bundle.manifest
    assert (manifest.width, manifest.normalized, manifest.max_tokens, manifest.max_text_tokens) == (20, True, 64, 32)
    assert {prompt.name for prompt in manifest.prompts} == {"query", "passage", "document"}
    sequences = [np.random.default_rng(n).integers(0, len(VOCABULARY), n) for n in (5, 17, 2)]
    pooled = model.graph.run(pack(sequences), hidden=True).pooled
    assert pooled is not None
    for vector, ids in zip(pooled, sequences, strict=True):
        mean = run_file(file, "last_hidden_state", ids).mean(0, dtype=np.float64)
        expected = np.tanh(tensors["linear.weight"].double().numpy() @ mean + tensors["linear.bias"].double().numpy())
        assert_close_to_scale(vector, expected, 1e-6)


def test_a_tokenizer_of_an_unknown_type_is_compared_with_that_of_transformers(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save_files(folder)
    edit_json(folder / "config.json", model_type="mobilebert")
    # transformers builds the tokenizer of this class from its vocabulary and its settings.
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer", "do_lower_case": False})
    assert export(folder) == 0
    tokenizer = Bundle.open(tmp_path / "bundle").folder / "tokenizer.json"
    assert json.loads(tokenizer.read_text())["normalizer"]["lowercase"] is False


def truncated(folder: Path) -> None:
    edit_json(folder / "config_sentence_transformers.json", truncate_dim=8)


def sparse(folder: Path) -> None:
    save_sentence_transformer(folder, modules=("MLMTransformer", "SpladePooling"))
    write_json(folder / "1_SpladePooling" / "config.json", {"pooling_strategy": "max"})


def several_poolings(folder: Path) -> None:
    edit_json(folder / "1_Pooling" / "config.json", pooling_mode_cls_token=True)


@pytest.mark.parametrize(
    ("alter", "fact"),
    [(truncated, "truncate_dim"), (sparse, "SpladePooling"), (several_poolings, "several poolings")],
)
def test_modules_that_no_file_of_an_unknown_type_can_have_are_refused(
    alter: Callable[[Path], None], fact: str, tmp_path: Path, refused: Refused
) -> None:
    folder = tmp_path / "model"
    save_files(folder)
    save_sentence_transformer(folder)
    edit_json(folder / "config.json", model_type="unheard-of")
    alter(folder)
    refused(["onnx", folder], fact)


def rows(folder: Path) -> Path:
    return write_onnx(save_bert(folder), folder / "model.onnx")


def logits(folder: Path) -> Path:
    return write_onnx(
        save_classifier(folder, "BertForSequenceClassification"), folder / "model.onnx", outputs=("logits",)
    )


def vectors(folder: Path) -> Path:
    file = write_onnx(
        Pooled(save_bert(folder)), folder / "model.onnx", outputs=("token_embeddings", "sentence_embedding")
    )
    model = onnx.load(file)
    del model.graph.output[0]
    onnx.save(model, file)
    return file


@pytest.mark.parametrize(
    ("make", "flags"),
    [
        (rows, ("--labels", "glad", "sad")),
        (logits, ("--pooling", "mean")),
        (logits, ("--normalize",)),
        (vectors, ("--pooling", "cls")),
    ],
)
def test_a_flag_without_effect_is_refused(
    make: Callable[[Path], Path], flags: tuple[str, ...], tmp_path: Path, refused: Refused
) -> None:
    file = make(tmp_path)
    assert export(file) == 0
    (tmp_path / "bundle").rename(tmp_path / "without")
    refused(["onnx", file, *flags], flags[0].removeprefix("--"))


def test_labels_of_the_caller_keep_the_function_of_the_scores(tmp_path: Path) -> None:
    file = logits(tmp_path)
    edit_json(tmp_path / "config.json", sbert_ce_default_activation_function="torch.nn.modules.linear.Identity")
    assert export(file, "--labels", "low", "middle", "high") == 0
    head = Bundle.open(tmp_path / "bundle").manifest.head
    assert ([*head.labels], head.function) == (["low", "middle", "high"], SCORE_FUNCTION_IDENTITY)


def test_a_file_of_images_needs_its_configuration(tmp_path: Path, refused: Refused) -> None:
    file = write_onnx(save_vit(tmp_path, "ViTModel"), tmp_path / "model.onnx", ("pixel_values",))
    (tmp_path / "config.json").unlink()
    refused(["onnx", file], "preprocessor_config.json")
