"""Checkpoints whose config.json has the fields of custom code give the hidden rows of `transformers`' own classes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers

from headwaiter_export.attention_layout_cpu import PackedCpu
from headwaiter_export.checkpoints import read_checkpoint
from tests.checkpoints import bert_hidden, write_json
from tests.export.family_checkpoints import SIZES, assert_equals_transformers, save_family
from tests.export.helpers import (
    assert_checkpoint_refused,
    assert_close_to_scale,
    edit_json,
    run_graph,
    write_graphs,
)
from tests.export.tokenizer_folders import word_piece

# config.json of nomic-embed-text-v1.5, with small sizes.
NOMIC: dict[str, Any] = {
    "model_type": "nomic_bert",
    "architectures": ["NomicBertModel"],
    "auto_map": {
        "AutoConfig": "nomic-ai/nomic-bert-2048--configuration_hf_nomic_bert.NomicBertConfig",
        "AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel",
    },
    "activation_function": "swiglu",
    "causal": False,
    "layer_norm_epsilon": 1e-12,
    "max_trained_positions": 2048,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "n_embd": 32,
    "n_head": 4,
    "n_inner": 64,
    "n_layer": 2,
    "n_positions": 24,
    "parallel_block": False,
    "prenorm": False,
    "qkv_proj_bias": False,
    "rotary_emb_base": 77,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "type_vocab_size": 2,
    "use_rms_norm": False,
    "vocab_size": 60,
}
# config.json of gte-base-en-v1.5, with small sizes.
NEW: dict[str, Any] = {
    **SIZES,
    "model_type": "new",
    "architectures": ["NewModel"],
    "auto_map": {
        "AutoConfig": "Alibaba-NLP/new-impl--configuration.NewConfig",
        "AutoModel": "Alibaba-NLP/new-impl--modeling.NewModel",
    },
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "layer_norm_type": "layer_norm",
    "logn_attention_clip1": False,
    "logn_attention_scale": False,
    "pack_qkv": True,
    "position_embedding_type": "rope",
    "rope_scaling": {"factor": 2.0, "type": "ntk"},
    "rope_theta": 77,
    "type_vocab_size": 0,
    "unpad_inputs": False,
}


def save_nomic(folder: Path, **changes: Any) -> transformers.PreTrainedModel:
    """Save a Nomic BERT in the layout of its code."""
    act = {"geglu": "gelu"}.get(changes.get("activation_function", ""), "silu")
    eps = changes.get("layer_norm_epsilon", NOMIC["layer_norm_epsilon"])
    rope = {"rope_type": "default", "rope_theta": changes.get("rotary_emb_base", 77)}
    model = save_family(folder, "NomicBert", pad_token_id=0, hidden_act=act, layer_norm_eps=eps, rope_parameters=rope)
    write_json(folder / "config.json", {**NOMIC, **changes})
    return model


def save_new(folder: Path, kind: str = "Model", **changes: Any) -> transformers.PreTrainedModel:
    """Save a GTE in the layout of its code; the returned model has the frequencies that this code computes."""
    fields = {**NEW, **changes}
    settings = {name: fields[name] for name in ("hidden_act", "layer_norm_eps", "type_vocab_size")}
    model = save_family(
        folder, "Gte", kind, pad_token_id=0, rope_parameters={"rope_type": "default", "rope_theta": 77}, **settings
    )
    factor, width = (fields["rope_scaling"] or {}).get("factor", 1.0), 8
    frequencies = 1.0 / ((fields["rope_theta"] * factor) ** (torch.arange(0, width, 2).float() / width))
    model.base_model.rotary_emb.inv_freq = frequencies / factor ** (2 / width)
    write_json(folder / "config.json", fields)
    return model


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"activation_function": "geglu", "layer_norm_epsilon": 0.1},
        {"rotary_emb_base": 10_000.0, "moe_every_n_layers": 0, "head_dim": 4},
    ],
)
def test_a_nomic_bert_of_its_own_code_equals_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    model = save_nomic(tmp_path, **changes)
    assert "encoder.layers.1.mlp.fc11.weight" in safetensors.torch.load_file(tmp_path / "model.safetensors")
    assert_equals_transformers(read_checkpoint(tmp_path).encoder, model, (1, 2, 13, 24))


def test_a_nomic_bert_whose_positions_are_scaled_for_long_texts_refuses_these(tmp_path: Path) -> None:
    model = save_nomic(tmp_path, rotary_scaling_factor=2.0, max_trained_positions=10)
    encoder = read_checkpoint(tmp_path).encoder
    assert encoder.config.max_tokens == 10
    assert_equals_transformers(encoder, model, (1, 10))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"rope_scaling": None, "type_vocab_size": 1, "layer_norm_eps": 0.1},
        {"rope_scaling": {"type": "ntk", "factor": 8.0, "mixed_b": None}, "rope_theta": 20, "hidden_act": "gelu_new"},
        {"rope_parameters": {"rope_type": "yarn"}, "head_dim": 4, "partial_rotary_factor": 0.5},
    ],
)
def test_a_gte_of_its_own_code_equals_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    model = save_new(tmp_path, **changes)
    assert "encoder.layer.1.mlp.up_gate_proj.weight" in safetensors.torch.load_file(tmp_path / "model.safetensors")
    assert_equals_transformers(read_checkpoint(tmp_path).encoder, model, (1, 2, 13, 24))


def test_a_reranker_of_the_code_of_gte_equals_transformers(tmp_path: Path) -> None:
    model = save_new(tmp_path, "ForSequenceClassification", architectures=["NewForSequenceClassification"])
    path = tmp_path / "model.safetensors"
    tensors = {name.replace("gte.", "new."): tensor for name, tensor in safetensors.torch.load_file(path).items()}
    safetensors.torch.save_file(tensors, path)
    assert any(name.startswith("new.encoder.") for name in tensors)
    encoder = read_checkpoint(tmp_path).encoder
    assert encoder.config.head is not None
    assert_equals_transformers(encoder, model.base_model, (1, 24))


@pytest.mark.exhaustive
@pytest.mark.parametrize("save", [save_nomic, save_new])
def test_the_served_graph_equals_transformers_at_every_length(save: Any, tmp_path: Path) -> None:
    model = save(tmp_path)
    path = write_graphs(read_checkpoint(tmp_path).encoder, tmp_path, PackedCpu)[PackedCpu]
    sequences = [np.random.default_rng(n).integers(2, 60, n) for n in (1, 2, 12, 13, 23, 24)]
    expected = [bert_hidden(model, ids) for ids in sequences]
    assert_close_to_scale(run_graph(path, "cpu", sequences).hidden, np.concatenate(expected))
    for ids, rows in zip(sequences, expected, strict=True):
        assert_close_to_scale(run_graph(path, "cpu", [ids]).hidden, rows)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("activation_function", "glu"),
        ("activation_function", "gelu"),
        ("causal", True),
        ("mlp_fc1_bias", True),
        ("mlp_fc2_bias", True),
        ("moe_every_n_layers", 2),
        ("num_heads_kv", 2),
        ("parallel_block", True),
        ("prenorm", True),
        ("qkv_proj_bias", True),
        ("rotary_emb_fraction", 0.5),
        ("rotary_emb_interleaved", True),
        ("rotary_emb_scale_base", 512),
        ("rotary_head_dim", True),
        ("use_rms_norm", True),
        ("n_inner", None),
        ("n_positions", 0),
        ("rotary_emb_base", "1"),
        ("auto_map", {"AutoModel": "modeling.OtherModel"}),
        ("auto_map", "modeling.NomicBertModel"),
    ],
)
def test_a_field_of_the_code_of_nomic_bert_that_the_encoder_lacks_is_named(
    field: str, value: Any, tmp_path: Path
) -> None:
    save_nomic(tmp_path)
    edit_json(tmp_path / "config.json", **{field: value})
    assert_checkpoint_refused(tmp_path, "rope_theta" if field == "rotary_emb_base" else field)


@pytest.mark.parametrize("field", ["qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias", "rotary_emb_fraction"])
def test_a_missing_field_has_the_default_of_the_code_of_nomic_bert(field: str, tmp_path: Path) -> None:
    save_nomic(tmp_path)
    config_json = json.loads((tmp_path / "config.json").read_text())
    del config_json[field]
    write_json(tmp_path / "config.json", config_json)
    assert_checkpoint_refused(tmp_path, field)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("layer_norm_type", "rms_norm"),
        ("logn_attention_clip1", True),
        ("logn_attention_scale", True),
        ("pack_qkv", False),
        ("position_embedding_type", "absolute"),
        ("rope_scaling", {"type": "linear", "factor": 2.0}),
        ("rope_scaling", {"type": "ntk", "factor": 2.0, "mixed_b": 0.5}),
        ("rope_scaling", {"type": "ntk"}),
        ("rope_scaling", {"type": "ntk", "factor": 2.0, "alpha": 1.0}),
        ("rope_scaling", "ntk"),
        ("rope_theta", "77"),
        ("hidden_act", "mish"),
        ("auto_map", {"AutoModel": "modeling.OtherModel"}),
    ],
)
def test_a_field_of_the_code_of_gte_that_the_encoder_lacks_is_named(field: str, value: Any, tmp_path: Path) -> None:
    save_new(tmp_path)
    edit_json(tmp_path / "config.json", **{field: value})
    assert_checkpoint_refused(tmp_path, field)


@pytest.mark.parametrize("save", [save_nomic, save_new])
def test_the_tokenizer_beside_custom_code_equals_transformers(save: Any, tmp_path: Path) -> None:
    save(tmp_path, vocab_size=1000)
    path = tmp_path / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    name = "embeddings.word_embeddings.weight"
    safetensors.torch.save_file({**tensors, name: torch.ones(1000, 32)}, path)
    word_piece().save(str(tmp_path / "tokenizer.json"))
    write_json(tmp_path / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer", "model_max_length": 20})
    # Reading compares the ids with those of AutoTokenizer.
    text = read_checkpoint(tmp_path).text
    assert text is not None
    assert text.max_tokens == 20
