"""CLIP's encoder of texts gives the vectors of `transformers`, alone and with the projection."""

from pathlib import Path

import pytest
import torch
import transformers

from headwaiter_export.checkpoints.reader import read_checkpoint
from headwaiter_export.config.choices import Pooling
from headwaiter_export.encoder.attention_layout import SingleSequence
from tests.support.checkpoints import write_json
from tests.support.export.family_checkpoints import save_family
from tests.support.export.helpers import assert_checkpoint_refused, assert_close
from tests.support.export.tokenizer_folders import clip

TEXTS = ("a photo of a cat", "Rain, rain!", "the bread is fresh " * 9)


def _save(folder: Path, kind: str, end: str, eos_token_id: int) -> transformers.PreTrainedModel:
    """Save a checkpoint whose tokenizer ends texts with the token `end`, which gets the largest id if it is new."""
    tokenizer = clip()
    tokenizer.add_special_tokens([end])
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "CLIPTokenizer", "eos_token": end})
    sizes = {"vocab_size": tokenizer.get_vocab_size(), "projection_dim": 20, "eos_token_id": eos_token_id}
    return save_family(folder, "CLIPText", kind, "CLIPTextConfig", **sizes)


@pytest.mark.parametrize("kind", ["Model", "ModelWithProjection"])
# Configurations of old releases have 2: transformers then pools the row of the largest id.
@pytest.mark.parametrize(("end", "eos_token_id"), [("<|endoftext|>", 1), ("[END]", 2)])
def test_the_vectors_of_texts_equal_transformers(end: str, eos_token_id: int, kind: str, tmp_path: Path) -> None:
    model = _save(tmp_path, kind, end, eos_token_id)
    loaded = read_checkpoint(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.encoder.config.pooling is Pooling.LAST
    assert loaded.encoder.config.pooled_width == (20 if kind.endswith("Projection") else 32)
    assert loaded.text is not None
    for text in TEXTS:
        ids = tokenizer(text, truncation=True, max_length=24, return_tensors="pt").input_ids
        with torch.inference_mode():
            pooled = loaded.encoder(ids[0], SingleSequence(ids.shape[1]))[0]
            expected = model(input_ids=ids)
        assert pooled is not None
        vectors = expected.text_embeds if kind.endswith("Projection") else expected.pooler_output
        assert_close(pooled.numpy(), vectors.numpy())


@pytest.mark.parametrize("eos_token_id", [2, 7])
def test_a_tokenizer_that_ends_texts_with_another_token_is_refused(eos_token_id: int, tmp_path: Path) -> None:
    _save(tmp_path, "Model", "<|endoftext|>", eos_token_id)
    assert_checkpoint_refused(tmp_path, f"eos_token_id {eos_token_id}", "ends texts with 1", "pooling")
    assert read_checkpoint(tmp_path, Pooling.MEAN).encoder.config.pooling is Pooling.MEAN
