"""Tiny random checkpoints in the layouts of custom code: their fields, and classes of `transformers` that agree."""

from pathlib import Path
from typing import Any

import safetensors.torch
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


# config.json of jina-embeddings-v3, with small sizes.
TASKS = ["retrieval.query", "retrieval.passage", "separation", "classification", "text-matching"]
JINA: dict[str, Any] = {
    **SIZES,
    "model_type": "xlm-roberta",
    "architectures": ["XLMRobertaModel"],
    "auto_map": {
        "AutoConfig": "jinaai/xlm-roberta-flash-implementation--configuration_xlm_roberta.XLMRobertaFlashConfig",
        "AutoModel": "jinaai/xlm-roberta-flash-implementation--modeling_lora.XLMRobertaLoRA",
        "AutoModelForMaskedLM": "jinaai/xlm-roberta-flash-implementation--modeling_xlm_roberta.XLMRobertaForMaskedLM",
    },
    "emb_pooler": "mean",
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-5,
    "load_trained_adapters": True,
    "lora_adaptations": TASKS,
    "lora_alpha": 1,
    "lora_dropout_p": 0.0,
    "lora_main_params_trainable": False,
    "lora_rank": 4,
    "matryoshka_dimensions": [8, 16, 32],
    "pad_token_id": 1,
    "position_embedding_type": "rotary",
    "rotary_emb_base": 77.0,
    "truncate_dim": None,
    "type_vocab_size": 1,
    "use_flash_attn": True,
}


def save_jina(folder: Path, adapter: str | None = None, **changes: Any) -> transformers.PreTrainedModel:
    """Save a jina-embeddings-v3 in the layout of its code; the returned model has one of the adapters in its weights.

    An adapter of a linear layer adds B A times alpha / rank to its weights, and one of a table of vectors A B.
    """
    rope = {"rope_type": "default", "rope_theta": changes.get("rotary_emb_base", 77.0)}
    words = changes.get("vocab_size", SIZES["vocab_size"])
    save_family(folder, "JinaEmbeddingsV3", pad_token_id=1, rope_parameters=rope, type_vocab_size=1, vocab_size=words)
    saved = safetensors.torch.load_file(folder / "model.safetensors")
    fields, tensors = {**JINA, **changes}, dict[str, torch.Tensor]()
    rank = fields["lora_rank"]
    for name, weight in list(saved.items()):
        module, _, kind = name.rpartition(".")
        if kind != "weight" or weight.ndim < 2:
            tensors[f"roberta.{name}"] = weight
            continue
        (rows, columns), is_table = weight.shape, name.startswith("embeddings.")
        shapes = ((rows, rank), (rank, columns)) if is_table else ((rank, columns), (rows, rank))
        a, b = (torch.randn(len(TASKS), *shape) / 4 for shape in shapes)
        prefix = f"roberta.{module}.parametrizations.weight"
        tensors |= {f"{prefix}.original": weight, f"{prefix}.0.lora_A": a, f"{prefix}.0.lora_B": b}
        if adapter is not None:
            task = TASKS.index(adapter)
            product = a[task] @ b[task] if is_table else b[task] @ a[task]
            saved[name] = weight + product * fields["lora_alpha"] / rank
    safetensors.torch.save_file(saved, folder / "model.safetensors")
    model = transformers.JinaEmbeddingsV3Model.from_pretrained(folder).eval()
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    write_json(folder / "config.json", fields)
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
