"""The supported families of checkpoints that take images; see families.py."""

from dataclasses import replace

from headwaiter_export.config import Norm, Pooling
from headwaiter_export.families import Family
from headwaiter_export.patch_input import DinoInput, PatchInput

_VIT = Family(
    input=PatchInput(),
    tensor_prefix="vit.",
    size_fields={
        "d_model": "hidden_size",
        "heads": "num_attention_heads",
        "layers": "num_hidden_layers",
        "d_ff": "intermediate_size",
    },
    activation_field="hidden_act",
    module_names={
        "embedding.tokens": "embeddings.patch_embeddings.projection",
        "embedding.positions.table": "embeddings.position_embeddings",
        "norm": "layernorm",
    },
    layer_prefix="encoder.layer",
    layer_module_names={
        "attention.query": "attention.attention.query",
        "attention.key": "attention.attention.key",
        "attention.value": "attention.attention.value",
        "attention.output": "attention.output.dense",
        "attention_norm": "layernorm_before",
        "feed_forward.up": "intermediate.dense",
        "feed_forward.down": "output.dense",
        "feed_forward_norm": "layernorm_after",
    },
    ignored_prefixes=("embeddings.mask_token", "pooler.", "decoder."),
    boolean_fields={"query_bias": "qkv_bias", "key_bias": "qkv_bias", "value_bias": "qkv_bias"},
    fixed_fields={
        "norm": Norm.PRE,
        "final_norm": True,
        "embedding_norm": False,
        "fixed_length": True,
    },
    default_pooling=Pooling.CLS,
)
_DEIT = replace(
    _VIT,
    input=PatchInput(tokens=("embeddings.cls_token", "embeddings.distillation_token")),
    tensor_prefix="deit.",
)
_DINOV2 = replace(
    _VIT,
    input=DinoInput(),
    tensor_prefix="dinov2.",
    size_fields={name: field for name, field in _VIT.size_fields.items() if name != "d_ff"},
    layer_module_names={
        **_VIT.layer_module_names,
        "attention_norm": "norm1",
        "feed_forward.up": "mlp.fc1",
        "feed_forward.down": "mlp.fc2",
        "feed_forward_norm": "norm2",
    },
    layer_scales={"attention.output": "layer_scale1.lambda1", "feed_forward.down": "layer_scale2.lambda1"},
    default_norm_eps=1e-6,
    required_fields={"use_swiglu_ffn": False},
)
_DINOV2_WITH_REGISTERS = replace(
    _DINOV2,
    input=DinoInput(registers="embeddings.register_tokens"),
    tensor_prefix="dinov2_with_registers.",
)

# Families by `model_type` in config.json.
IMAGE_FAMILIES: dict[str, Family] = {
    "vit": _VIT,
    "deit": _DEIT,
    "dinov2": _DINOV2,
    "dinov2_with_registers": _DINOV2_WITH_REGISTERS,
}
