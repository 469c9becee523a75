"""CLIP's encoder of texts gives the vectors of `transformers`, alone and with the projection."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from headwaiter_export.checkpoints.reader import read_checkpoint
from headwaiter_export.config.choices import Pooling
from headwaiter_export.encoder.layout import SingleSequence
from tests.checkpoints import write_json
from tests.export.family_checkpoints import save_family
from tests.export.helpers import assert_checkpoint_refused, assert_close
from tests.export.tokenizer_folders import clip

TEXTS = ("a photo of a cat", "Rain, rain!", "the bread is fresh " * 9)


def _save(folder: Path, kind: str, **settings: Any) -> transformers.PreTrainedModel:
    tokenizer = clip()
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "CLIPTokenizer"})
    sizes = {"vocab_size": tokenizer.get_vocab_size(), "projection_dim": 20, "eos_token_id": 1, **settings}
    return save_family(folder, "CLIPText", kind, **sizes)


@pytest.mark.parametrize("kind", ["Model", "ModelWithProjection"])
@pytest.mark.parametrize("eos_token_id", [1, 2])
def test_the_vectors_of_texts_equal_transformers(eos_token_id: int, kind: str, tmp_path: Path) -> None:
    model = _save(tmp_path, kind, config_class="CLIPTextConfig", eos_token_id=eos_token_id)
    loaded = read_checkpoint(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.encoder.config.pooling is Pooling.LAST
    assert loaded.encoder.config.pooled_width == (20 if kind.endswith("Projection") else 32)
    assert loaded.text is not None
    for text in TEXTS:
        ids = tokenizer(text, truncation=True, max_length=24, return_tensors="pt").input_ids
        # The old rule takes the token of the largest id, which is the last one in CLIP's own vocabulary.
        ids = ids if eos_token_id == 1 else torch.cat([ids[:, :-1], torch.tensor([[tokenizer.vocab_size - 1]])], 1)
        with torch.inference_mode():
            pooled, _ = loaded.encoder(ids[0], SingleSequence(ids.shape[1]))
            expected = model(input_ids=ids)
        assert pooled is not None
        vectors = expected.text_embeds if kind.endswith("Projection") else expected.pooler_output
        assert_close(pooled.numpy(), vectors.numpy())


def test_a_tokenizer_that_ends_texts_with_another_token_is_refused(tmp_path: Path) -> None:
    _save(tmp_path, "Model", config_class="CLIPTextConfig", eos_token_id=7)
    assert_checkpoint_refused(tmp_path, "eos_token_id 7", "another token, 1")
