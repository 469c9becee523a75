"""The supported families of checkpoints that take images or audio; see families.py."""

from dataclasses import replace

from headwaiter_export.after_pooling import ModuleKind, PooledModule
from headwaiter_export.checkpoint_json import CheckpointJson
from headwaiter_export.choices import Norm, Pooling, Positions
from headwaiter_export.family import USUAL_SIZES, Family, SequenceHead
from headwaiter_export.feature_inputs import DinoInput, FrameInput, ImageInput, RotaryImageInput, SpectrogramInput

_VIT = Family(
    input=ImageInput(),
    tensor_prefix="vit.",
    size_fields=USUAL_SIZES,
    optional_size_fields={"head_dim": "head_dim"},
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
    input=ImageInput(tokens=("embeddings.cls_token", "embeddings.distillation_token")),
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
    input=DinoInput(registers="embeddings.register_tokens", antialias=True),
    tensor_prefix="dinov2_with_registers.",
)
_AST = replace(
    _DEIT,
    input=SpectrogramInput(tokens=("embeddings.cls_token", "embeddings.distillation_token")),
    tensor_prefix="audio_spectrogram_transformer.",
    default_pooling=Pooling.NONE,
)
_DINOV3 = replace(
    _DINOV2,
    input=RotaryImageInput(projection="embeddings.patch_embeddings", registers="embeddings.register_tokens"),
    tensor_prefix="model.",
    size_fields=_VIT.size_fields,
    optional_size_fields={},
    module_names={
        "embedding.tokens": "embeddings.patch_embeddings",
        "embedding.positions.table": "embeddings.position_embeddings",
        "norm": "norm",
    },
    layer_prefix="layer",
    layer_module_names={
        "attention.query": "attention.q_proj",
        "attention.key": "attention.k_proj",
        "attention.value": "attention.v_proj",
        "attention.output": "attention.o_proj",
        "attention_norm": "norm1",
        "feed_forward.up": "mlp.up_proj",
        "feed_forward.down": "mlp.down_proj",
        "feed_forward_norm": "norm2",
    },
    boolean_fields={
        "query_bias": "query_bias",
        "key_bias": "key_bias",
        "value_bias": "value_bias",
        "output_bias": "proj_bias",
    },
    fixed_fields={**_VIT.fixed_fields, "positions": Positions.ROTARY_GRID},
    required_fields={"use_gated_mlp": False, "mlp_bias": True, "rope_theta": 100.0},
    default_norm_eps=1e-5,
)
_SIGLIP_INPUT = ImageInput(
    projection="embeddings.patch_embedding",
    positions="embeddings.position_embedding.weight",
    tokens=(),
)
_SIGLIP_VISION = Family(
    input=_SIGLIP_INPUT,
    tensor_prefix="vision_model.",
    size_fields=_VIT.size_fields,
    default_values={
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "num_channels": 3,
        "image_size": 224,
        "patch_size": 16,
        "hidden_act": "gelu_pytorch_tanh",
        "layer_norm_eps": 1e-6,
    },
    activation_field="hidden_act",
    module_names={
        "embedding.tokens": "embeddings.patch_embedding",
        "embedding.positions.table": "embeddings.position_embedding",
        "norm": "post_layernorm",
    },
    layer_prefix="encoder.layers",
    layer_module_names={
        "attention.query": "self_attn.q_proj",
        "attention.key": "self_attn.k_proj",
        "attention.value": "self_attn.v_proj",
        "attention.output": "self_attn.out_proj",
        "attention_norm": "layer_norm1",
        "feed_forward.up": "mlp.fc1",
        "feed_forward.down": "mlp.fc2",
        "feed_forward_norm": "layer_norm2",
    },
    ignored_prefixes=("embeddings.position_ids", "head."),
    fixed_fields=_VIT.fixed_fields,
    default_pooling=Pooling.NONE,
)
_SIGLIP = replace(
    _SIGLIP_VISION,
    config_fields=("vision_config",),
    ignored_prefixes=(*_SIGLIP_VISION.ignored_prefixes, "text_model.", "logit_scale", "logit_bias"),
)


def _clip_modules(config_json: CheckpointJson, encoder_json: CheckpointJson) -> tuple[PooledModule, ...]:
    """Return CLIP's norm of the class token's row, and the projection if the checkpoint has it."""
    eps = encoder_json.values["layer_norm_eps"]
    if not isinstance(eps, float) or not 0 < eps < 1:
        raise encoder_json.error("layer_norm_eps", "it must be a number between 0 and 1")
    norm = PooledModule(kind=ModuleKind.LAYER_NORM, eps=eps)
    whole = config_json.values["model_type"] == "clip"
    if not whole and not any(name.endswith("WithProjection") for name in config_json.strings("architectures")):
        return (norm,)
    sizes = replace(config_json, values={"projection_dim": 512, **config_json.values})
    return norm, PooledModule(kind=ModuleKind.DENSE, width=sizes.size("projection_dim"), bias=False)


_CLIP_VISION = replace(
    _SIGLIP_VISION,
    input=replace(_SIGLIP_INPUT, tokens=("embeddings.class_embedding",), projection_bias=False),
    default_values={
        **_SIGLIP_VISION.default_values,
        "patch_size": 32,
        "hidden_act": "quick_gelu",
        "layer_norm_eps": 1e-5,
    },
    module_names={
        "embedding.tokens": "embeddings.patch_embedding",
        "embedding.positions.table": "embeddings.position_embedding",
        "embedding.norm": "pre_layrnorm",
        "after_pooling.0.norm": "post_layernorm",
        "after_pooling.1.linear": "visual_projection",
    },
    ignored_prefixes=("embeddings.position_ids", "post_layernorm.", "visual_projection."),
    fixed_fields={"norm": Norm.PRE, "fixed_length": True},
    default_pooling=Pooling.CLS,
    own_modules=_clip_modules,
)
_CLIP = replace(
    _CLIP_VISION,
    # Older releases of transformers wrote both, and the first overrides the second.
    config_fields=("vision_config_dict", "vision_config"),
    ignored_prefixes=(*_CLIP_VISION.ignored_prefixes, "text_model.", "text_projection.", "logit_scale"),
)
_WHISPER = Family(
    input=FrameInput(),
    tensor_prefix="model.",
    size_fields={
        "d_model": "d_model",
        "heads": "encoder_attention_heads",
        "layers": "encoder_layers",
        "d_ff": "encoder_ffn_dim",
    },
    activation_field="activation_function",
    module_names={"embedding.positions.table": "encoder.embed_positions", "norm": "encoder.layer_norm"},
    layer_prefix="encoder.layers",
    layer_module_names={
        **_SIGLIP_VISION.layer_module_names,
        "attention_norm": "self_attn_layer_norm",
        "feed_forward.up": "fc1",
        "feed_forward.down": "fc2",
        "feed_forward_norm": "final_layer_norm",
    },
    ignored_prefixes=("encoder.conv1.", "encoder.conv2.", "decoder.", "proj_out."),
    aliases={
        **dict.fromkeys(("num_attention_heads", "num_key_value_heads"), "encoder_attention_heads"),
        "hidden_size": "d_model",
        "num_hidden_layers": "encoder_layers",
    },
    fixed_fields={**_VIT.fixed_fields, "feature_projection": False, "key_bias": False},
    norm_eps=1e-5,
)

# Families by `model_type` in config.json.
FEATURE_FAMILIES: dict[str, Family] = {
    "vit": replace(_VIT, sequence_head=SequenceHead("classifier")),
    "deit": _DEIT,
    "audio-spectrogram-transformer": _AST,
    "clip": _CLIP,
    "clip_vision_model": _CLIP_VISION,
    "dinov2": _DINOV2,
    "dinov2_with_registers": _DINOV2_WITH_REGISTERS,
    "dinov3_vit": _DINOV3,
    "siglip": _SIGLIP,
    "siglip_vision_model": _SIGLIP_VISION,
    "whisper": _WHISPER,
}
