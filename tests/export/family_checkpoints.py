"""Tiny random checkpoints of families of text encoders, and their comparison with `transformers`."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from headwaiter_export.checkpoints.reader import read_checkpoint
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_export.encoder.layout import SingleSequence
from tests.checkpoints import bert_hidden, randomize
from tests.export.helpers import assert_checkpoint_refused, assert_close_to_scale

SIZES = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 24,
}
# DeBERTa v3, with fewer buckets: distances of 9 to 59 share 7 of them.
DEBERTA_V3: dict[str, Any] = {
    "max_position_embeddings": 70,
    "relative_attention": True,
    "position_buckets": 16,
    "max_relative_positions": 60,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "position_biased_input": False,
}
ROPE = {"rope_type": "default", "rope_theta": 77.0}
LINEAR = {"rope_type": "linear", "rope_theta": 77.0, "factor": 4.0}
# Rotary positions that the encoder lacks.
PROPORTIONAL = {"rope_type": "proportional", "rope_theta": 77.0, "factor": 2.0, "partial_rotary_factor": 0.5}
# Other values of fields of all configuration classes, whose changed value cannot be derived from their default.
VALUES: dict[str, list[Any]] = {
    "hidden_act": ["silu", "relu", "gelu_new", "gelu", "mish", "tanh"],
    "hidden_size": [48],
    "num_attention_heads": [2, 8],
    "num_hidden_layers": [1, 4],
    "layer_types": [
        ["full_attention"] * 2,
        ["sliding_attention"] * 2,
        ["sliding_attention", "full_attention"],
    ],
    "head_dim": [4, 12],
    "tie_word_embeddings": [False],
    "classifier_pooling": ["mean"],
    "architectures": [["Other"]],
    "is_encoder_decoder": [True],
    "problem_type": ["regression"],
    "id2label": [{0: "a", 1: "b", 2: "c"}],
    "label2id": [{"a": 0}],
    "dtype": ["float32"],
    "transformers_version": ["5.0.0"],
}


def save_family(
    folder: Path, name: str, kind: str = "Model", config_class: str = "", **settings: Any
) -> transformers.PreTrainedModel:
    """Save a random checkpoint of a family, whose classes in `transformers` begin with this name."""
    torch.manual_seed(0)
    config = getattr(transformers, config_class or f"{name}Config")(
        **{**SIZES, **settings}, attn_implementation="eager"
    )
    model = getattr(transformers, f"{name}{kind}")(config).eval()
    # The angles of rotary positions are stored beside the parameters.
    angles = {name: value.clone() for name, value in model.state_dict().items() if "embed_positions" in name}
    randomize(model)
    model.load_state_dict(angles, strict=False)
    model.save_pretrained(folder)
    return model


def changed_values(field: str, default: Any, values: Mapping[str, list[Any]]) -> list[Any]:
    """Return values of a field of a configuration class that differ from its default; `values` has exceptions."""
    if field in values:
        return [*values[field]]
    if isinstance(default, bool):
        return [not default]
    if isinstance(default, float):
        return [default + 0.5]
    changed: int = 5 if field.endswith("token_id") else SIZES.get(field, 20) + 4
    return [changed]


def changed_fields(name: str, values: Mapping[str, list[Any]], *, every_run: bool) -> list[Any]:
    """Return test parameters (name, field, value): each field of a family's configuration class with other values.

    `values` are those of fields whose changed value cannot be derived from their default; `every_run` says whether
    every run tests the family.
    """
    return [
        pytest.param(
            name,
            field.name,
            value,
            id=f"{name}-{field.name}-{number}",
            marks=[] if every_run else [pytest.mark.exhaustive],
        )
        for field in fields(getattr(transformers, f"{name}Config"))
        for number, value in enumerate(changed_values(field.name, field.default, {**VALUES, **values}))
    ]


def base_field_marks(field: str) -> list[pytest.MarkDecorator]:
    """Return the marks of a test of a field; every run tests the fields of all classes with Qwen3's class only."""
    return [pytest.mark.exhaustive] * any(field == each.name for each in fields(transformers.PreTrainedConfig))


def assert_honoured_or_refused(
    folder: Path, model: transformers.PreTrainedModel, field: str, *, refused: bool, max_tokens: int = 0
) -> None:
    """Check that a checkpoint with a changed field is refused by its name, or gives the hidden rows of `transformers`.

    `max_tokens` is the longest length to check; 0 stands for the encoder's own maximum.
    """
    if refused:
        assert_checkpoint_refused(folder, field)
    else:
        encoder = read_checkpoint(folder).encoder
        assert_equals_transformers(encoder, model, (1, max_tokens or encoder.config.max_tokens))


def assert_equals_transformers(encoder: Encoder, model: transformers.PreTrainedModel, lengths: Sequence[int]) -> None:
    """Check the hidden rows of random sequences of these lengths."""
    rng = np.random.default_rng(1)
    for tokens in lengths:
        ids = rng.integers(0, encoder.config.vocabulary_size, tokens)
        with torch.inference_mode():
            _, hidden = encoder(torch.from_numpy(ids), SingleSequence(tokens))
        assert_close_to_scale(hidden.numpy(), bert_hidden(model, ids))
