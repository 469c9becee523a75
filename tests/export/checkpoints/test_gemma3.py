"""Checkpoints of Gemma 3, causal or bidirectional, give `transformers`' hidden rows, whatever their configuration."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import transformers

from headwaiter_export.checkpoints.reader import read_checkpoint
from tests.export.family_checkpoints import (
    LINEAR,
    PROPORTIONAL,
    ROPE,
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

WINDOW = 5
LOCAL = {**ROPE, "rope_theta": 9.0}
GEMMA: dict[str, Any] = {
    "num_key_value_heads": 2,
    "head_dim": 12,
    "query_pre_attn_scalar": 7,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 2 * WINDOW,
    "use_bidirectional_attention": True,
    "bos_token_id": 1,
}
OWN_VALUES: dict[str, list[Any]] = {
    "hidden_activation": ["silu", "gelu", "mish"],
    "num_key_value_heads": [1, 4, 3],
    "head_dim": [4, 8],
    "rms_norm_eps": [1e-12, 0.1],
    "sliding_window": [1, 2, 3, 4, 48, 1000],
    "query_pre_attn_scalar": [12, 256],
    "use_bidirectional_attention": [False],
    "attn_logit_softcapping": [50.0],
    "final_logit_softcapping": [30.0],
    "rope_parameters": [
        {"full_attention": ROPE, "sliding_attention": LOCAL},
        {"full_attention": LINEAR, "sliding_attention": LOCAL},
        {"full_attention": ROPE, "sliding_attention": LINEAR},
        {"full_attention": PROPORTIONAL, "sliding_attention": LOCAL},
    ],
}
CHANGES = [
    pytest.param(field.name, value, id=f"{field.name}-{number}", marks=base_field_marks(field.name))
    for field in fields(transformers.Gemma3TextConfig)
    for number, value in enumerate(changed_values(field.name, field.default, VALUES | OWN_VALUES))
]


def save_gemma(folder: Path, kind: str = "TextModel", **settings: Any) -> transformers.PreTrainedModel:
    return save_family(folder, "Gemma3", kind, "Gemma3TextConfig", **{**GEMMA, **settings})


@pytest.mark.parametrize(("field", "value"), CHANGES)
def test_a_changed_field_is_honoured_or_refused_by_name(field: str, value: Any, tmp_path: Path) -> None:
    kinds = {"layer_types": None} if field == "num_hidden_layers" else {}
    model = save_gemma(tmp_path, **{**kinds, field: value})
    refused = value == "mish" or "proportional" in str(value) or field == "attn_logit_softcapping"
    refused = refused or (field, value) == ("num_key_value_heads", 3)
    assert_honoured_or_refused(tmp_path, model, field, refused=refused)


def test_the_fields_of_transformers_4_equal_transformers(tmp_path: Path) -> None:
    old: dict[str, Any] = {"rope_theta": 99.0, "rope_local_base_freq": 7.0, "sliding_window_pattern": 2}
    model = save_gemma(tmp_path, layer_types=None, num_hidden_layers=4, **old)
    edit_json(tmp_path / "config.json", **old, layer_types=None, rope_parameters=None)
    encoder = read_checkpoint(tmp_path).encoder
    assert encoder.config.local_layers == (0, 2)
    assert (encoder.config.rotary_theta, encoder.config.local_rotary_theta) == (99.0, 7.0)
    assert_equals_transformers(encoder, model, (1, 24))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("layer_types", ["full_attention"]),
        ("is_causal", False),
        ("rope_scaling", {"rope_type": "proportional", "factor": 8.0}),
        ("use_bidirectional_attention", "all"),
        ("query_pre_attn_scalar", 0),
        ("sliding_window", None),
    ],
)
def test_a_field_that_the_encoder_lacks_is_refused_by_name(field: str, value: Any, tmp_path: Path) -> None:
    save_gemma(tmp_path)
    edit_json(tmp_path / "config.json", **{field: value})
    assert_checkpoint_refused(tmp_path, field)
