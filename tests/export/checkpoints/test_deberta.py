"""A DeBERTa checkpoint gives `transformers`' hidden rows, whatever its configuration."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from headwaiter_export.checkpoints.reader import read_checkpoint
from headwaiter_export.config.choices import Pooling
from headwaiter_export.encoder.layout import SingleSequence
from headwaiter_export.graphs.layouts import Packed, Portable
from tests.checkpoints import bert_hidden
from tests.export.family_checkpoints import (
    DEBERTA_V3,
    VALUES,
    assert_equals_transformers,
    assert_honoured_or_refused,
    base_field_marks,
    changed_values,
    save_family,
)
from tests.export.helpers import (
    RUNTIMES,
    assert_checkpoint_refused,
    assert_close,
    assert_close_to_scale,
    edit_json,
    run_graph,
    write_graphs,
)

MAX_TOKENS: int = DEBERTA_V3["max_position_embeddings"]
LENGTHS = (1, 2, 8, 9, 10, 59, 60, 61, MAX_TOKENS)
# Fields that transformers reads from config.json, but that its class does not list.
UNLISTED: dict[str, list[Any]] = {
    "position_buckets": [-1, 0, 1, 2, 7, 64, 200],
    "norm_rel_ebd": ["none", "batch_norm"],
    "share_att_key": [False],
    "conv_kernel_size": [0, 3],
    "conv_act": ["gelu"],
    "embedding_size": [12],
    "attention_head_size": [8],
    "pooler_hidden_size": [32],
}
OWN_VALUES: dict[str, list[Any]] = {
    "max_relative_positions": [-1, 0, 8, 9, 10, 300],
    "pos_att_type": ["c2p", ["p2c"], " C2P | p2c ", [], None, ["p2p", "c2p"]],
    "type_vocab_size": [1, 2],
    "layer_norm_eps": [1e-12, 0.1],
    "pooler_dropout": [0.5],
    "pooler_hidden_act": ["tanh"],
}
REFUSED: list[tuple[str, Any]] = [
    ("hidden_act", "mish"),
    ("hidden_act", "tanh"),
    ("position_buckets", 1),
    ("norm_rel_ebd", "batch_norm"),
    ("conv_kernel_size", 3),
    ("max_relative_positions", 8),
    ("max_relative_positions", 9),
    ("pos_att_type", ["p2p", "c2p"]),
    ("is_decoder", True),
]
CHANGES = [
    pytest.param(name, value, id=f"{name}-{number}", marks=base_field_marks(name))
    for name, values in {
        **{
            field.name: changed_values(field.name, DEBERTA_V3.get(field.name, field.default), VALUES | OWN_VALUES)
            for field in fields(transformers.DebertaV2Config)
        },
        **UNLISTED,
    }.items()
    for number, value in enumerate(values)
]


def save_deberta(folder: Path, kind: str = "Model", **settings: Any) -> transformers.PreTrainedModel:
    return save_family(folder, "DebertaV2", kind, **{**DEBERTA_V3, **settings})


@pytest.mark.parametrize(("field", "value"), CHANGES)
def test_a_changed_field_is_honoured_or_refused_by_name(field: str, value: Any, tmp_path: Path) -> None:
    model = save_deberta(tmp_path, **{field: value})
    assert_honoured_or_refused(tmp_path, model, field, refused=(field, value) in REFUSED)


def test_distances_at_the_bounds_of_buckets_equal_transformers(tmp_path: Path) -> None:
    model = save_deberta(tmp_path)
    assert_equals_transformers(read_checkpoint(tmp_path).encoder, model, LENGTHS)


@pytest.mark.exhaustive
@pytest.mark.parametrize("layout", RUNTIMES)
def test_mixed_batches_equal_transformers_in_every_layout(
    layout: type[Packed] | type[Portable], tmp_path: Path
) -> None:
    model = save_deberta(tmp_path, num_hidden_layers=1)
    path = write_graphs(read_checkpoint(tmp_path).encoder, tmp_path, layout)[layout]
    sequences = [np.random.default_rng(n).integers(2, 60, n) for n in LENGTHS]
    expected = [bert_hidden(model, ids) for ids in sequences]
    for runtime in RUNTIMES[layout]:
        assert_close_to_scale(run_graph(path, runtime, sequences).hidden, np.concatenate(expected))
        for ids, rows in zip(sequences, expected, strict=True):
            assert_close_to_scale(run_graph(path, runtime, [ids]).hidden, rows)


@pytest.mark.parametrize("settings", [{}, {"share_att_key": False, "pos_att_type": ["c2p"], "embedding_size": 12}])
def test_all_tables_of_embeddings_are_folded(settings: dict[str, Any], tmp_path: Path) -> None:
    model = save_deberta(tmp_path, position_biased_input=True, type_vocab_size=2, **settings)
    assert_equals_transformers(read_checkpoint(tmp_path).encoder, model, (1, 2, MAX_TOKENS))


@pytest.mark.parametrize("legacy", [True, False])
def test_the_head_of_the_pretraining_is_ignored(legacy: bool, tmp_path: Path) -> None:
    model = save_deberta(tmp_path, "ForMaskedLM", legacy=legacy)
    assert_equals_transformers(read_checkpoint(tmp_path, Pooling.CLS).encoder, model.base_model, (3, MAX_TOKENS))


@pytest.mark.parametrize("activation", ["gelu", "tanh", "relu", "gelu_new", "silu"])
def test_a_classifier_of_pairs_equals_transformers(activation: str, tmp_path: Path) -> None:
    model = save_deberta(tmp_path, "ForSequenceClassification", pooler_hidden_act=activation, type_vocab_size=2)
    encoder = read_checkpoint(tmp_path).encoder
    rng = np.random.default_rng(0)
    for n in (1, 2, MAX_TOKENS):
        ids, types = (torch.from_numpy(rng.integers(*limits, n)) for limits in ((2, 60), (0, 2)))
        layout = SingleSequence(n)
        with torch.inference_mode():
            logits = encoder.logits(encoder(ids, layout, types)[1], layout)
            expected = model(input_ids=ids[None], token_type_ids=types[None]).logits
        assert logits is not None
        assert_close(logits.numpy(), expected.numpy())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("pooler_hidden_act", "mish"),
        ("pooler_hidden_act", "quick_gelu"),
        ("conv_kernel_size", 3),
        ("pooler_hidden_size", 48),
        ("attention_head_size", 16),
        ("relative_attention", "yes"),
        ("share_att_key", "yes"),
        ("embedding_size", 0),
        ("position_biased_input", None),
    ],
)
def test_a_setting_that_the_encoder_lacks_is_refused_by_name(field: str, value: Any, tmp_path: Path) -> None:
    save_deberta(tmp_path, "ForSequenceClassification")
    edit_json(tmp_path / "config.json", **{field: value})
    # No weight is read.
    (tmp_path / "model.safetensors").unlink()
    assert_checkpoint_refused(tmp_path, field)
