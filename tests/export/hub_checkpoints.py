"""Tiny random checkpoints in the layouts of custom code: their fields, and classes of `transformers` that agree."""

from pathlib import Path
from typing import Any

import torch
import transformers

from tests.checkpoints import write_json
from tests.export.family_checkpoints import SIZES, save_family

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
