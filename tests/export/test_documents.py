"""The ways to a bundle that the pages show make bundles."""

import json
import shutil
from itertools import pairwise
from pathlib import Path

import joblib
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from sklearn.linear_model import LogisticRegression
from tokenizers import Tokenizer

from headwaiter_export import cli
from headwaiter_export.checkpoints.weights import random_encoder
from headwaiter_export.cli import main
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_server.runtime.bundle import Bundle
from headwaiter_server.runtime.model import open_model
from headwaiter_server.runtime.packing import pack
from tests.support.checkpoints import VOCABULARY, save_bert, save_sentence_transformer, save_tokenizer
from tests.support.documents import (
    BUNDLE,
    ENCODER_CONFIG,
    EXPORT_CHECKPOINT,
    EXPORT_MODULE,
    EXPORT_ONNX_FILE,
    blocks,
    commands,
)

pytestmark = pytest.mark.usefixtures("packed_cpu_alone")


@pytest.mark.exhaustive
@pytest.mark.usefixtures("starts_processes", "runs_graphs", "runs_transformers")
def test_the_export_commands_of_the_page_make_bundles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exports = [arguments for _, *arguments in commands(ENCODER_CONFIG, tmp_path)]
    config = EncoderConfig.from_dict(json.loads(Path("config.json").read_text()))
    save_file(random_encoder(config, seed=0).state_dict(), "weights.safetensors")
    assert [arguments[0] for arguments in exports] == ["module", "preset"]
    for arguments in exports:
        assert main(arguments) == 0, arguments
        Bundle.open(Path("my-bundle"))
        shutil.rmtree("my-bundle")


@pytest.mark.usefixtures("starts_processes")
@pytest.mark.parametrize(
    ("page", "number"),
    [(EXPORT_CHECKPOINT, 9), (EXPORT_MODULE, 2), (EXPORT_ONNX_FILE, 1), (BUNDLE, 1)],
    ids=lambda value: value.name if isinstance(value, Path) else "",
)
def test_the_export_has_the_flags_of_the_commands_of_a_page(
    page: Path, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "_export", lambda _: 0)
    exports = [arguments for program, *arguments in commands(page, tmp_path) if program == "headwaiter-export"]
    assert len(exports) == number
    for arguments in exports:
        assert main(arguments) == 0  # Wrong usage raises SystemExit.


def test_the_configuration_with_a_decoder_of_the_page_is_one() -> None:
    (block,) = (block for block in blocks(ENCODER_CONFIG, "json") if '"decoder"' in block)
    assert EncoderConfig.from_dict(json.loads(block)).takes_target


@pytest.mark.usefixtures("runs_graphs")
def test_the_pytorch_example_of_the_page_makes_a_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = (block for block in blocks(EXPORT_MODULE, "python") if "from_transformer_encoder" in block)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    module = torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    exec(compile(block, EXPORT_MODULE.name, "exec"), {"module": module})
    assert Bundle.open(tmp_path / "my-bundle").manifest.width == 8


@pytest.mark.usefixtures("starts_processes", "runs_graphs", "runs_transformers")
def test_the_classifier_of_setfit_gives_the_probabilities_of_scikit_learn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("path/to/setfit")
    save_bert(folder)
    save_tokenizer(folder)
    save_sentence_transformer(folder, modules=("Transformer", "Pooling"))
    encoder = SentenceTransformer(str(folder), device="cpu")
    texts, labels = ["rain on a table", "the rain", "a table", "on a", "the table", "rain"], [0, 0, 1, 1, 2, 2]
    classifier = LogisticRegression(max_iter=10_000).fit(encoder.encode(texts), labels)
    joblib.dump(classifier, folder / "model_head.pkl")
    (block,) = (block for block in blocks(EXPORT_MODULE, "python") if "class SetFit" in block)
    Path("code.py").write_text(block)
    (arguments,) = (rest for _, *rest in commands(EXPORT_MODULE, tmp_path) if "code.py:SetFit" in rest)
    sizes = {"--vocabulary-size": str(len(VOCABULARY)), "--max-tokens": "24"}
    arguments = [sizes.get(before, each) for before, each in pairwise(["", *arguments])]
    assert main(arguments) == 0
    model = open_model(Path("my-classifier"), "cpu", "auto", threads=1)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    ids = [np.array(each.ids, np.int64) for each in tokenizer.encode_batch(texts)]
    logits = model.graph.run(pack(ids), hidden=False).logits
    assert logits is not None
    probabilities = torch.from_numpy(np.concatenate(logits)).softmax(1).numpy()
    np.testing.assert_allclose(probabilities, classifier.predict_proba(encoder.encode(texts)), atol=1e-5)
