"""Tiny random checkpoints of each family give the hidden rows that `transformers` gives."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from headwaiter_export.checkpoints.reader import read_checkpoint
from headwaiter_export.config.choices import Pooling
from headwaiter_export.encoder.layout import SingleSequence
from tests.checkpoints import bert_hidden
from tests.export.family_checkpoints import (
    assert_equals_transformers,
    assert_honoured_or_refused,
    changed_fields,
    save_family,
)
from tests.export.helpers import assert_checkpoint_refused, assert_close


@pytest.mark.parametrize(
    ("name", "settings", "max_tokens"),
    [
        ("Ernie", {}, 24),
        ("Electra", {"embedding_size": 32}, 24),
        ("Electra", {"embedding_size": 12}, 24),
        # Two positions are reserved for the padding token.
        ("Data2VecText", {}, 22),
        ("XLMRobertaXL", {}, 22),
        ("Albert", {"embedding_size": 12}, 24),
        # Distances of 128 and more share a bucket.
        ("MPNet", {"max_position_embeddings": 302}, 300),
        ("RoFormer", {}, 24),
        ("RoFormer", {"embedding_size": 12}, 24),
    ],
)
def test_a_family_equals_transformers(name: str, settings: dict[str, Any], max_tokens: int, tmp_path: Path) -> None:
    model = save_family(tmp_path, name, **settings)
    encoder = read_checkpoint(tmp_path).encoder
    assert encoder.config.max_tokens == max_tokens
    assert_equals_transformers(encoder, model, (1, 2, 3, max_tokens))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Ernie", "ForMaskedLM"),
        ("Ernie", "ForPreTraining"),
        ("Electra", "ForMaskedLM"),
        ("Electra", "ForPreTraining"),
        ("Data2VecText", "ForMaskedLM"),
        ("XLMRobertaXL", "ForMaskedLM"),
        ("Albert", "ForMaskedLM"),
        ("MPNet", "ForMaskedLM"),
        ("Albert", "ForPreTraining"),
        ("RoFormer", "ForMaskedLM"),
    ],
)
def test_a_pretraining_head_of_a_family_is_ignored(name: str, kind: str, tmp_path: Path) -> None:
    model = save_family(tmp_path, name, kind)
    encoder = read_checkpoint(tmp_path, Pooling.MEAN).encoder
    ids = np.arange(2, 12)
    with torch.inference_mode():
        _, hidden = encoder(torch.from_numpy(ids), SingleSequence(len(ids)))
    assert_close(hidden.numpy(), bert_hidden(model.base_model, ids))


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        ("Ernie", "use_task_id", True),
        ("Albert", "num_hidden_groups", 2),
        ("Albert", "inner_group_num", 2),
        ("RoFormer", "rotary_value", True),
        ("MPNet", "relative_attention_num_buckets", 16),
        ("MPNet", "pad_token_id", 0),
    ],
)
def test_a_setting_that_the_encoder_lacks_is_refused_by_name(
    name: str, setting: str, value: Any, tmp_path: Path
) -> None:
    save_family(tmp_path, name, **{setting: value})
    assert_checkpoint_refused(tmp_path, setting, str(value))


def test_rotary_positions_with_other_angles_are_refused_by_name(tmp_path: Path) -> None:
    save_family(tmp_path, "RoFormer")
    path = tmp_path / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    tensors["encoder.embed_positions.weight"] *= 0.9
    safetensors.torch.save_file(tensors, path, {"format": "pt"})
    assert_checkpoint_refused(tmp_path, "encoder.embed_positions.weight", "10,000")


SETTINGS: dict[str, dict[str, Any]] = {
    "Bert": {},
    "Roberta": {},
    "XLMRoberta": {},
    "XLMRobertaXL": {},
    "Camembert": {},
    "Data2VecText": {},
    "Ernie": {},
    "Electra": {"embedding_size": 12},
    "Albert": {"embedding_size": 12},
    "RoFormer": {"embedding_size": 12},
    "MPNet": {},
    "DistilBert": {},
}
# Other values of fields whose changed value cannot be derived from their default.
OWN_VALUES: dict[str, list[Any]] = {
    "layer_norm_eps": [1e-5, 0.1],
    "type_vocab_size": [1, 3],
    "activation": ["relu", "mish"],
    "chunk_size_feed_forward": [1],
    "summary_type": ["last"],
    "summary_activation": ["tanh"],
    # transformers has cross-attention in decoders only.
    "add_cross_attention": [],
}
REFUSED_FIELDS = {
    "is_decoder",
    "use_task_id",
    "num_hidden_groups",
    "inner_group_num",
    "rotary_value",
    "relative_attention_num_buckets",
}
CHANGES = [change for name in SETTINGS for change in changed_fields(name, OWN_VALUES, every_run=name == "Bert")]


@pytest.mark.parametrize(("name", "field", "value"), CHANGES)
def test_a_changed_field_is_honoured_or_refused_by_name(name: str, field: str, value: Any, tmp_path: Path) -> None:
    model = save_family(tmp_path, name, **{**SETTINGS[name], field: value})
    refused = field in REFUSED_FIELDS or (name, field) == ("MPNet", "pad_token_id")
    refused |= field in ("hidden_act", "activation") and value in ("mish", "tanh")
    assert_honoured_or_refused(tmp_path, model, field, refused=refused)
