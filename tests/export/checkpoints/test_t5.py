"""The encoder of a T5 checkpoint gives `transformers`' hidden rows, whatever its configuration."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers

from headwaiter_export.checkpoints.reader import read_checkpoint
from headwaiter_export.config.choices import Pooling
from tests.export.family_checkpoints import (
    VALUES,
    assert_equals_transformers,
    assert_honoured_or_refused,
    base_field_marks,
    changed_values,
    save_family,
)
from tests.export.helpers import (
    assert_checkpoint_refused,
    edit_json,
)

MAX_TOKENS = 70
T5: dict[str, Any] = {
    "d_model": 32,
    "d_kv": 12,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "n_positions": MAX_TOKENS,
    "relative_attention_num_buckets": 16,
    "relative_attention_max_distance": 40,
}
OWN_VALUES: dict[str, list[Any]] = {
    "d_model": [48],
    "d_kv": [4, 8],
    "num_heads": [1, 3],
    "num_layers": [1, 4],
    "num_decoder_layers": [1],
    "feed_forward_proj": ["gelu", "gated-gelu", "gated-silu", "gated-relu", "gelu_new", "mish", "gated-tanh"],
    "layer_norm_epsilon": [1e-12, 0.1],
    "relative_attention_num_buckets": [4, 9, 32],
    "relative_attention_max_distance": [5, 20, 128, 1000],
    "classifier_dropout": [0.5],
    # Larger random weights give larger scores, and rounding errors beyond the tolerance on some processors.
    "initializer_factor": [0.5],
    "tie_word_embeddings": [False],
}
CHANGES = [
    pytest.param(field.name, value, id=f"{field.name}-{number}", marks=base_field_marks(field.name))
    for field in fields(transformers.T5Config)
    for number, value in enumerate(changed_values(field.name, field.default, VALUES | OWN_VALUES))
]
REFUSED = ["mish", "gated-tanh"]


def save_t5(folder: Path, kind: str = "EncoderModel", **settings: Any) -> transformers.PreTrainedModel:
    return save_family(folder, "T5", kind, **{**T5, **settings})


@pytest.mark.parametrize(("field", "value"), CHANGES)
def test_a_changed_field_is_honoured_or_refused_by_name(field: str, value: Any, tmp_path: Path) -> None:
    model = save_t5(tmp_path, **{field: value})
    refused = value in REFUSED or (field, value) == ("is_decoder", True)
    assert_honoured_or_refused(tmp_path, model, field, refused=refused, max_tokens=MAX_TOKENS)


def test_a_checkpoint_with_a_decoder_gives_the_rows_of_its_encoder(tmp_path: Path) -> None:
    model = save_t5(tmp_path, "ForConditionalGeneration")
    assert_equals_transformers(read_checkpoint(tmp_path, Pooling.MEAN).encoder, model.encoder, (1, 2, 3, MAX_TOKENS))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dense_act_fn", "gelu"),
        ("is_gated_act", True),
        ("relative_attention_num_buckets", 3),
        ("relative_attention_max_distance", 4),
        ("n_positions", 0),
        ("feed_forward_proj", "gated"),
    ],
)
def test_a_field_that_the_encoder_lacks_is_refused_by_name(field: str, value: Any, tmp_path: Path) -> None:
    save_t5(tmp_path)
    edit_json(tmp_path / "config.json", **{field: value})
    assert_checkpoint_refused(tmp_path, field)


def test_two_tables_of_tokens_are_refused_if_they_differ(tmp_path: Path) -> None:
    model = save_t5(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    same = {**tensors, "encoder.embed_tokens.weight": tensors["shared.weight"].clone()}
    safetensors.torch.save_file(same, path)
    assert_equals_transformers(read_checkpoint(tmp_path).encoder, model, (3,))
    safetensors.torch.save_file({**same, "encoder.embed_tokens.weight": torch.ones(60, 32)}, path)
    assert_checkpoint_refused(tmp_path, "shared.weight", "encoder.embed_tokens.weight")
