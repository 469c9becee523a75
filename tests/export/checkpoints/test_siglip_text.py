"""SigLIP's encoder of texts gives the vectors of `transformers`, which fills texts up with padding tokens."""

from contextlib import redirect_stdout
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from headwaiter_export.bundle.sentences import tokenize
from headwaiter_export.checkpoints.reader import LoadedModel, read_checkpoint
from headwaiter_export.cli import main
from headwaiter_export.config.choices import Pooling
from headwaiter_export.encoder.attention_layout import SingleSequence
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import Failures
from headwaiter_server.models.tokenizer import BundleTokenizer, TokenizeOptions
from tests.support.checkpoints import write_json, write_modules_json
from tests.support.e2e.in_process_server import connect, serving
from tests.support.export.family_checkpoints import save_family
from tests.support.export.helpers import assert_checkpoint_refused, assert_close, edit_json
from tests.support.export.tokenizer_folders import gemma
from tests.support.oracle import Array

TEXTS = ["a photo of a cat", "RAIN", "the bread is fresh"]
PLACES = 24
SETTINGS = {"tokenizer_class": "GemmaTokenizer", "padding_side": "right", "model_input_names": ["input_ids"]}


def save(folder: Path, name: str = "SiglipText", **settings: Any) -> transformers.PreTrainedModel:
    """Save a checkpoint with SigLIP 2's tokenizer."""
    tokenizer = gemma()
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", SETTINGS)
    vocabulary_size = tokenizer.get_vocab_size()
    return save_family(folder, name, vocab_size=vocabulary_size, max_position_embeddings=PLACES, **settings)


def expected(model: transformers.PreTrainedModel, folder: Path) -> Array:
    """Return the vectors of the texts in `transformers`, as its documentation says."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(TEXTS, padding="max_length", max_length=PLACES, return_tensors="pt")
    with torch.inference_mode():
        vectors: Array = model(**inputs).pooler_output.numpy()
    return vectors


@pytest.mark.parametrize(("name", "projection"), [("SiglipText", 20), ("SiglipText", None), ("Siglip2Text", 20)])
def test_the_vectors_of_texts_equal_transformers(name: str, projection: int | None, tmp_path: Path) -> None:
    model = save(tmp_path, name, projection_size=projection)
    loaded = read_checkpoint(tmp_path)
    assert loaded.text is not None
    assert loaded.encoder.config.pooled_width == (projection or 32)
    assert_close(vectors(loaded), expected(model, tmp_path))


def vectors(loaded: LoadedModel) -> Array:
    """Return the vectors that a reply has, to a request that names no prompt."""
    text = loaded.text
    assert text is not None
    (prompt,) = (each for each in text.prompts if each.name == text.default_prompt)
    tokenizer, failures = BundleTokenizer(text.tokenizer.encode(), text.max_tokens), Failures(keep=False)
    rows = tokenizer.tokenize(TEXTS, TokenizeOptions(pb.Prompt(**asdict(prompt))), failures, 9999)
    with torch.inference_mode():
        pooled = [loaded.encoder(torch.from_numpy(each.ids), SingleSequence(len(each.ids)))[0] for each in rows]
    return np.concatenate([each.numpy() for each in pooled if each is not None])


def test_another_pooling_leaves_out_the_linear_layer(tmp_path: Path) -> None:
    save(tmp_path)
    loaded = read_checkpoint(tmp_path, Pooling.MEAN)
    assert loaded.encoder.config.pooled_width == 32
    assert loaded.text is not None
    assert loaded.text.default_prompt == "filled"


def test_the_sentences_that_calibrate_int8_are_filled_up(tmp_path: Path) -> None:
    save(tmp_path)
    loaded = read_checkpoint(tmp_path)
    assert loaded.text is not None
    assert {len(ids) for ids in tokenize(loaded.text, loaded.encoder.config).calibration} == {PLACES}


@pytest.mark.exhaustive
@pytest.mark.usefixtures("packed_cpu_alone")
async def test_a_server_fills_up_texts(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    model = save(tmp_path / "checkpoint")
    with redirect_stdout(StringIO()):
        assert main(["checkpoint", str(tmp_path / "checkpoint"), "-o", str(tmp_path / "bundle")]) == 0
    async with serving(tmp_path / "bundle") as server, connect(server) as client:
        encoding = await client.encode(TEXTS)
    assert encoding.lengths.tolist() == [PLACES] * len(TEXTS)
    assert_close(encoding.pooled, expected(model, tmp_path / "checkpoint"))


@pytest.mark.parametrize(
    "wrong",
    [{"padding_side": "left"}, {"pad_token": None}, {"model_input_names": ["input_ids", "attention_mask"]}],
)
def test_texts_that_cannot_be_filled_up_on_the_right_are_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    save(tmp_path)
    edit_json(tmp_path / "tokenizer_config.json", **wrong)
    assert_checkpoint_refused(tmp_path, "padding")


def test_sentence_transformers_does_not_fill_up_texts(tmp_path: Path) -> None:
    save(tmp_path)
    write_modules_json(tmp_path, "Transformer", "Pooling")
    (tmp_path / "1_Pooling").mkdir()
    write_json(tmp_path / "1_Pooling" / "config.json", {"pooling_mode_lasttoken": True})
    assert_checkpoint_refused(tmp_path, "modules.json")
