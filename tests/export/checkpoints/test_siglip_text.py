"""SigLIP's encoder of texts gives the vectors of `transformers`, which fills texts up with padding tokens."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from headwaiter_export.checkpoints.reader import LoadedModel, read_checkpoint
from headwaiter_export.config.choices import Pooling
from headwaiter_export.encoder.attention_layout import SingleSequence
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import Failures
from headwaiter_server.models.tokenizer import BundleTokenizer, TokenizeOptions
from tests.checkpoints import write_json
from tests.export.family_checkpoints import save_family
from tests.export.helpers import assert_checkpoint_refused, assert_close, edit_json
from tests.export.tokenizer_folders import gemma
from tests.oracle import Array

TEXTS = ["a photo of a cat", "RAIN", "the bread is fresh"]
PLACES = 24


def save(folder: Path, name: str = "SiglipText", **settings: Any) -> transformers.PreTrainedModel:
    """Save a checkpoint with SigLIP 2's tokenizer."""
    tokenizer = gemma()
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "GemmaTokenizer", "padding_side": "right"})
    vocabulary_size = tokenizer.get_vocab_size()
    return save_family(folder, name, vocab_size=vocabulary_size, max_position_embeddings=PLACES, **settings)


def expected(model: transformers.PreTrainedModel, folder: Path) -> Array:
    """Return the vectors of the texts in `transformers`, as its documentation says."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(TEXTS, padding="max_length", max_length=PLACES, return_tensors="pt").input_ids
    with torch.inference_mode():
        vectors: Array = model(input_ids=ids).pooler_output.numpy()
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


def test_with_another_pooling_texts_are_not_filled_up(tmp_path: Path) -> None:
    save(tmp_path)
    loaded = read_checkpoint(tmp_path, Pooling.MEAN)
    assert loaded.text is not None
    assert loaded.text.prompts == ()
    assert loaded.encoder.config.pooled_width == 32


@pytest.mark.parametrize("wrong", [{"padding_side": "left"}, {"pad_token": None}])
def test_texts_that_cannot_be_filled_up_on_the_right_are_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    save(tmp_path)
    edit_json(tmp_path / "tokenizer_config.json", **wrong)
    assert_checkpoint_refused(tmp_path, "padding")
