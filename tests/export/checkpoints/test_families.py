"""Tiny random checkpoints of each family of text encoders give the hidden rows that `transformers` gives.

Each field of each configuration is changed: the encoder follows the change, or the export names the field.
"""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from headwaiter_export.checkpoints.reader import read_checkpoint
from headwaiter_export.config.choices import Pooling, Positions
from tests.support.checkpoints import write_json
from tests.support.export.family_checkpoints import LINEAR, PROPORTIONAL, ROPE, SIZES, assert_equals_transformers
from tests.support.export.family_examples import TEXT_EXAMPLES, WINDOW, save_example
from tests.support.export.helpers import (
    assert_checkpoint_refused,
    changed_tensors,
    drop_fields,
    edit_json,
)
from tests.support.tiers import exhaustive

# Lengths near the window, near the bounds of DeBERTa's buckets of distances, and others.
LENGTHS = (1, 2, 3, WINDOW - 1, WINDOW, WINDOW + 1, 8, 9, 10, 13, 59, 60, 61)
# The families of which every run changes each field. Others share their code, and are exhaustive.
EVERY_RUN = ("Bert", "Qwen3", "ModernBert", "Gemma3", "DebertaV2")
BASE_FIELDS = {each.name for each in fields(transformers.PreTrainedConfig)}
# Values that the encoder follows, of fields whose changed value cannot be derived from their default.
VALUES: dict[str, list[Any]] = {
    "activation": ["relu"],
    # transformers has cross-attention in decoders only.
    "add_cross_attention": [],
    "architectures": [["Other"]],
    "chunk_size_feed_forward": [1],
    "classifier_activation": ["silu"],
    "classifier_dropout": [0.5],
    "classifier_pooling": ["mean"],
    "dtype": ["float32"],
    "final_logit_softcapping": [30.0],
    "head_dim": [4, 12, 16],
    "hidden_act": ["silu", "relu", "gelu_new", "gelu"],
    "hidden_activation": ["silu", "relu", "gelu_new", "gelu_pytorch_tanh"],
    "hidden_size": [48],
    "id2label": [{0: "a", 1: "b", 2: "c"}],
    "is_encoder_decoder": [True],
    "label2id": [{"a": 0}],
    "layer_norm_eps": [1e-12, 1e-5, 0.1],
    "layer_types": [
        ["full_attention"] * 2,
        ["sliding_attention"] * 2,
        ["sliding_attention", "full_attention"],
    ],
    "local_attention": [0, 1, 2, 7, 1000],
    "max_window_layers": [0, 2],
    "norm_eps": [1e-12, 0.1],
    "num_attention_heads": [2, 8],
    "num_hidden_layers": [1, 4],
    # Multi-query attention, and one head of keys for each head of queries.
    "num_key_value_heads": [1, 4],
    "problem_type": ["regression"],
    "query_pre_attn_scalar": [12, 256],
    "rms_norm_eps": [1e-12, 0.1],
    "rope_parameters": [ROPE, LINEAR],
    "sliding_window": [1, 2, 3, 4, 23, 24, 48, 1000, None],
    "summary_activation": ["tanh"],
    "summary_type": ["last"],
    "tie_word_embeddings": [False],
    "transformers_version": ["5.0.0"],
    "type_vocab_size": [1, 3],
    "use_bidirectional_attention": [False],
}
LOCAL = {**ROPE, "rope_theta": 9.0}
ROPES = [
    {"full_attention": ROPE, "sliding_attention": LOCAL},
    {"full_attention": LINEAR, "sliding_attention": LOCAL},
    {"full_attention": ROPE, "sliding_attention": LINEAR},
]
T5_VALUES: dict[str, list[Any]] = {
    "d_model": [48],
    "d_kv": [4, 8],
    "num_heads": [1, 3],
    "num_layers": [1, 4],
    "num_decoder_layers": [1],
    "feed_forward_proj": ["relu", "gelu", "gated-silu", "gated-relu", "gelu_new"],
    "layer_norm_epsilon": [1e-12, 0.1],
    "relative_attention_num_buckets": [4, 9, 32],
    "relative_attention_max_distance": [5, 20, 128, 1000],
    # Larger random weights give larger scores, and rounding errors beyond the tolerance on some processors.
    "initializer_factor": [0.5],
}
OWN_VALUES: dict[str, dict[str, list[Any]]] = {
    "Esm": {
        "position_embedding_type": ["absolute"],
        "mask_token_id": [5],
        "emb_layer_norm_before": [True, None],
        "token_dropout": [False, None],
        "rope_theta": [9.0],
        # A field of the checkpoints that transformers ignores.
        "hidden_act": ["gelu"],
        # Fields of a model that folds proteins.
        "esmfold_config": [],
        "vocab_list": [],
    },
    # With return_dict false, transformers' own code fails.
    "Bart": {"return_dict": [True], "decoder_attention_heads": [8], "activation_function": ["relu", "gelu_new"]},
    "ModernBert": {"rope_parameters": ROPES},
    "Gemma2": {
        "attn_logit_softcapping": [0.25, 2.0, None],
        "final_logit_softcapping": [1.0, None],
        "sliding_window": [1, 2, 3, 4, 23, 24, 48, 1000],
    },
    "Gemma3": {
        "rope_parameters": ROPES,
        "sliding_window": [1, 2, 3, 4, 48, 1000],
        "attn_logit_softcapping": [50.0],
    },
    "T5": T5_VALUES,
    "MT5": T5_VALUES,
    "UMT5": T5_VALUES,
    "Deberta": {"pos_att_type": ["c2p", ["p2c"], [], None], "pooler_hidden_act": ["tanh"]},
    "DebertaV2": {
        "max_relative_positions": [-1, 0, 10, 300],
        "pos_att_type": ["c2p", ["p2c"], " C2P | p2c ", [], None],
        "type_vocab_size": [1, 2],
        "pooler_dropout": [0.5],
        "pooler_hidden_act": ["tanh"],
        # Fields that transformers reads from config.json, but that its class does not list.
        "position_buckets": [-1, 0, 2, 7, 64, 200],
        "norm_rel_ebd": ["none"],
        "share_att_key": [False],
        "conv_kernel_size": [0],
        "conv_act": ["gelu"],
        "embedding_size": [12],
        "attention_head_size": [8],
        "pooler_hidden_size": [32],
    },
}
# Two positions are reserved for the padding token.
RESERVES_TWO_POSITIONS = ("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "data2vec-text", "mpnet")
# The fields, of all families or of one, whose changed value the encoder does not follow. That the export refuses, or
# follows, any other value of any field is tested in test_changed_files.py.
REFUSED = {
    *("is_decoder", "is_folding_model", "use_task_id", "rotary_value", "num_hidden_groups", "inner_group_num"),
    # transformers ignores these fields.
    *("MPNet-pad_token_id", "MPNet-relative_attention_num_buckets"),
    *("Bart-decoder_attention_heads", "Bart-tie_word_embeddings", "Gemma3-attn_logit_softcapping"),
}


def changes() -> list[Any]:
    """Return test parameters (name, field, value): each field of each family's configuration with other values."""
    found: list[Any] = []
    for name, example in TEXT_EXAMPLES.items():
        defaults = {each.name: each.default for each in fields(getattr(transformers, example.config))}
        own = OWN_VALUES.get(name, {})
        for field in [*defaults, *(each for each in own if each not in defaults)]:
            known = {**VALUES, **own}
            default = example.settings.get(field, defaults.get(field))
            values = known[field] if field in known else [other_value(field, default)]
            rare = name not in EVERY_RUN or (field in BASE_FIELDS and name != "Qwen3")
            cases = [pytest.param(name, field, value, id=f"{name}-{field}-{i}") for i, value in enumerate(values)]
            found += exhaustive(*cases) if rare else cases
    return found


def other_value(field: str, default: Any) -> Any:
    if isinstance(default, bool):
        return not default
    if isinstance(default, float):
        return default + 0.5
    return 5 if field.endswith("token_id") else SIZES.get(field, 20) + 4


@pytest.mark.parametrize(("name", "field", "value"), changes())
def test_a_changed_field_is_honoured_or_refused_by_name(name: str, field: str, value: Any, tmp_path: Path) -> None:
    # Otherwise the layers have the kinds of the example, which are two.
    kinds = {"layer_types": None} if field == "num_hidden_layers" and name == "Gemma3" else {}
    model = save_example(tmp_path, name, **{**kinds, field: value})
    if not REFUSED.isdisjoint({field, f"{name}-{field}"}):
        assert_checkpoint_refused(tmp_path, field)
    else:
        encoder = read_checkpoint(tmp_path).encoder
        assert_equals_transformers(encoder, model, (1, encoder.config.max_tokens))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        *((name, {}) for name in TEXT_EXAMPLES),
        ("Electra", {"embedding_size": 32}),
        ("RoFormer", {"embedding_size": 12}),
        # Distances of 128 and more share a bucket.
        ("MPNet", {"max_position_embeddings": 302}),
        ("Gte", {"type_vocab_size": 0}),
        *((name, {"is_causal": False}) for name in ("Llama", "Mistral", "Qwen2", "Qwen3")),
        # ESM-1b.
        ("Esm", {"position_embedding_type": "absolute", "emb_layer_norm_before": True}),
        *(("DebertaV2", {"conv_kernel_size": size, "conv_act": "gelu"}) for size in (1, 3, 5)),
        # All tables of embeddings are folded.
        ("DebertaV2", {"position_biased_input": True, "type_vocab_size": 2}),
        (
            "DebertaV2",
            {
                "position_biased_input": True,
                "type_vocab_size": 2,
                "share_att_key": False,
                "pos_att_type": ["c2p"],
                "embedding_size": 12,
            },
        ),
    ],
)
def test_a_family_equals_transformers(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    model = save_example(tmp_path, name, **settings)
    encoder = read_checkpoint(tmp_path).encoder
    longest = encoder.config.max_tokens
    settled = model.config.to_dict()
    places = settled.get("n_positions", settled["max_position_embeddings"])
    reserves_two = settled["model_type"] in RESERVES_TWO_POSITIONS or (name == "Esm" and settings)
    assert longest == places - (2 if reserves_two else 0)
    assert_equals_transformers(encoder, model, [*(each for each in LENGTHS if each < longest), longest])


@pytest.mark.parametrize(
    ("name", "kind", "settings"),
    [
        *(
            (name, "ForMaskedLM", {})
            for name in (
                *("Bert", "Ernie", "Electra", "Data2VecText", "XLMRobertaXL", "Albert", "MPNet", "RoFormer"),
                *("ModernBert", "NomicBert", "Gte", "JinaEmbeddingsV3", "DebertaV2"),
            )
        ),
        ("DebertaV2", "ForMaskedLM", {"legacy": False}),
        *((name, "ForPreTraining", {}) for name in ("Ernie", "Electra", "Albert")),
        ("Llama", "ForCausalLM", {}),
        # The decoder is ignored, too.
        ("T5", "ForConditionalGeneration", {}),
    ],
)
def test_the_head_of_a_language_model_is_ignored(
    name: str, kind: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    model = save_example(tmp_path, name, kind, **settings)
    encoder = read_checkpoint(tmp_path, Pooling.MEAN).encoder
    assert_equals_transformers(encoder, model.encoder if name == "T5" else model.base_model, (1, 12))


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("Qwen3", "layer_types", ["full_attention", "chunked_attention"]),
        # The second layer attends locally, but has no window.
        ("Qwen3", "use_sliding_window", False),
        ("Qwen3", "sliding_window", 0),
        ("Mistral", "layer_types", ["full_attention"] * 2),
        ("Llama", "num_key_value_heads", 3),
        ("Llama", "is_causal", "no"),
        ("Llama", "rope_parameters", PROPORTIONAL),
        ("Llama", "rope_scaling", PROPORTIONAL),
        ("ModernBert", "head_dim", 4),
        ("ModernBert", "sliding_window", 3),
        ("ModernBert", "rope_parameters", {"full_attention": {**ROPE, "partial_rotary_factor": 0.5}}),
        ("ModernBert", "rope_parameters", {"full_attention": {**ROPE, "rope_theta": 0}}),
        ("ModernBert", "norm_bias", "no"),
        ("NomicBert", "rope_scaling", {"type": "ntk", "factor": 2.0}),
        ("NomicBert", "rope_parameters", {**ROPE, "partial_rotary_factor": 0.5}),
        ("Gte", "rope_scaling", {"type": "ntk", "factor": 8.0}),
        ("Gemma2", "attn_logit_softcapping", 0.0),
        ("Gemma2", "use_bidirectional_attention", True),
        ("Gemma3", "is_causal", False),
        ("EuroBert", "is_causal", True),
        ("Gemma3", "use_bidirectional_attention", "all"),
        ("T5", "is_gated_act", False),
        ("T5", "feed_forward_proj", "gated-tanh"),
        ("T5", "relative_attention_max_distance", 4),
        ("Esm", "hidden_act", "relu"),
        ("Esm", "position_embedding_type", "relative_key"),
        ("DebertaV2", "conv_act", "tanh"),
        ("DebertaV2", "conv_groups", 2),
        ("DebertaV2", "conv_kernel_size", 2),
        ("DebertaV2", "hidden_act", 3),
        ("DebertaV2", "max_relative_positions", 9),
        ("DebertaV2", "norm_rel_ebd", "batch_norm"),
        ("DebertaV2", "pos_att_type", ["p2p", "c2p"]),
        ("DebertaV2", "position_buckets", 1),
        ("DebertaV2", "pooler_hidden_size", 48),
        ("DebertaV2", "attention_head_size", 16),
    ],
)
def test_a_field_that_the_encoder_lacks_is_refused_by_name(name: str, field: str, value: Any, tmp_path: Path) -> None:
    convolution: dict[str, Any] = {"conv_kernel_size": 3, "conv_act": "gelu"} if name == "DebertaV2" else {}
    save_example(tmp_path, name, **convolution)
    edit_json(tmp_path / "config.json", **{field: value})
    assert_checkpoint_refused(tmp_path, "rope_" if "rope" in field else field)


@pytest.mark.parametrize(
    ("name", "tensor", "content", "facts"),
    [
        ("Qwen3", "layers.1.self_attn.k_proj.weight", torch.ones(7, 32), []),
        ("Qwen3", "layers.0.self_attn.q_norm.weight", torch.ones(7, 32), []),
        # `norm_bias` is false.
        ("ModernBert", "final_norm.bias", torch.ones(32), []),
        ("ModernBert", "layers.1.attn.Wqkv.weight", torch.ones(90, 32), []),
        ("NomicBert", "encoder.layers.0.attn.Wqkv.bias", torch.ones(96), []),
        ("Gte", "encoder.layer.0.mlp.up_gate_proj.bias", torch.ones(128), []),
        # Other angles of rotary positions.
        ("RoFormer", "encoder.embed_positions.weight", 0.9 * torch.ones(24, 8), ["10,000"]),
        # Another table of tokens.
        ("T5", "encoder.embed_tokens.weight", torch.ones(60, 32), ["shared.weight"]),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused_by_name(
    name: str, tensor: str, content: Tensor, facts: list[str], tmp_path: Path
) -> None:
    save_example(tmp_path, name)
    with changed_tensors(tmp_path) as tensors:
        tensors[tensor] = content
    assert_checkpoint_refused(tmp_path, *tensor.rsplit(".", 1), *facts)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [("Llama", "layers.0.self_attn.rotary_emb.inv_freq"), ("T5", "encoder.embed_tokens.weight")],
)
def test_stored_frequencies_and_a_second_equal_table_of_tokens_are_ignored(
    name: str, tensor: str, tmp_path: Path
) -> None:
    model = save_example(tmp_path, name)
    with changed_tensors(tmp_path) as tensors:
        tensors[tensor] = tensors["shared.weight"].clone() if name == "T5" else torch.ones(4)
    assert_equals_transformers(read_checkpoint(tmp_path).encoder, model, (3,))


@pytest.mark.parametrize(
    ("name", "own"),
    [
        *(
            ("ModernBert", {"global_attn_every_n_layers": n, "global_rope_theta": 99.0, "local_rope_theta": 7.0})
            for n in (1, 2, 3, 9)
        ),
        ("Gemma3", {"sliding_window_pattern": 2, "rope_theta": 99.0, "rope_local_base_freq": 7.0}),
    ],
)
def test_the_fields_of_transformers_4_equal_transformers(name: str, own: dict[str, Any], tmp_path: Path) -> None:
    old = {**own, "num_hidden_layers": 4}
    model = save_example(tmp_path, name, layer_types=None, **old)
    drop_fields(tmp_path / "config.json", "layer_types", "rope_parameters")
    edit_json(tmp_path / "config.json", **old)
    encoder = read_checkpoint(tmp_path).encoder
    assert (encoder.config.rotary_theta, encoder.config.local_rotary_theta) == (99.0, 7.0)
    assert_equals_transformers(encoder, model, (1, encoder.config.max_tokens))


def test_a_checkpoint_without_optional_fields_has_the_defaults_of_transformers(tmp_path: Path) -> None:
    model = save_example(tmp_path, "Mistral", num_attention_heads=8, num_key_value_heads=8, sliding_window=4096)
    write_json(tmp_path / "config.json", {name: getattr(model.config, name) for name in ("model_type", *SIZES)})
    assert_equals_transformers(read_checkpoint(tmp_path).encoder, model, (1, 24))


@pytest.mark.parametrize("name", ["ModernBert", "NomicBert", "Gte", "JinaEmbeddingsV3"])
def test_the_type_of_position_embeddings_is_ignored_as_in_transformers(name: str, tmp_path: Path) -> None:
    save_example(tmp_path, name)
    edit_json(tmp_path / "config.json", position_embedding_type="rope")
    assert read_checkpoint(tmp_path).encoder.config.positions is Positions.ROTARY
