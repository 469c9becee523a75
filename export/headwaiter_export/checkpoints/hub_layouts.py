"""The configurations of checkpoints with custom code, translated into the fields of `transformers`' own classes.

The export runs no code of a checkpoint. These checkpoints have published code whose fields are known, and
`transformers` has classes that compute the same. A value that these classes lack is refused by name.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headwaiter_export.checkpoints.json_files import CheckpointError, CheckpointJson

# The only supported values of fields of Nomic BERT's code, and its defaults that differ from these values.
_NOMIC_VALUES: dict[str, Any] = {
    **dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias", "prenorm", "parallel_block", "causal"), False),
    **dict.fromkeys(("rotary_emb_interleaved", "rotary_head_dim", "use_rms_norm"), False),
    "rotary_emb_fraction": 1.0,
    "rotary_emb_scale_base": None,
    "num_heads_kv": None,
    "moe_every_n_layers": 0,
}
_NOMIC_DEFAULTS = {**_NOMIC_VALUES, **dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"), True)} | {
    "rotary_emb_fraction": 0.0,
    "rotary_emb_base": 10_000.0,
    "layer_norm_epsilon": 1e-5,
    "max_trained_positions": 2048,
    "type_vocab_size": 2,
}
# The same for the variant with experts, which has biases.
_NOMIC_EXPERTS_VALUES = {
    **_NOMIC_VALUES,
    **dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"), True),
    **dict.fromkeys(("moe_normalize_expert_weights", "expert_choice_router"), False),
    "num_shared_experts": 0,
    "ffn_div": 1,
}
del _NOMIC_EXPERTS_VALUES["moe_every_n_layers"]
_NOMIC_EXPERTS_DEFAULTS = {**_NOMIC_EXPERTS_VALUES, **_NOMIC_DEFAULTS}
# The names of transformers that the code takes too, because its configuration is derived from that of GPT-2.
_NOMIC_ALIASES = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
}
# The only supported values of fields of GTE's code, which are also its defaults.
_NEW_VALUES = {
    "layer_norm_type": "layer_norm",
    "position_embedding_type": "rope",
    "pack_qkv": True,
    "logn_attention_scale": False,
    "logn_attention_clip1": False,
}
# The only supported values of fields of the code of jina-embeddings-v3, and its defaults.
_JINA_VALUES = {
    "position_embedding_type": "rotary",
    "hidden_act": "gelu",
    "truncate_dim": None,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    # None stands for the width of a head.
    "rotary_emb_dim": None,
}
_JINA_DEFAULTS = {**_JINA_VALUES, "rotary_emb_base": 10_000.0, "layer_norm_eps": 1e-5, "type_vocab_size": 1}
# The same for the code of jina-embeddings-v2.
_JINA_V2_VALUES = {"position_embedding_type": "alibi", "feed_forward_type": "geglu", "hidden_act": "gelu"}
_JINA_V2_DEFAULTS = {**_JINA_V2_VALUES, "position_embedding_type": "absolute", "feed_forward_type": "original"}


def nomic_json(config_json: CheckpointJson) -> CheckpointJson:
    """Translate the fields of GPT-2 that Nomic BERT's code has; return a configuration of `transformers` as it is.

    Rotary positions are scaled for sequences of more than `max_trained_positions` tokens, by a factor that depends on
    their length: if there is a factor, this number is the maximum.
    Source: https://github.com/nomic-ai/contrastors, src/contrastors/models/huggingface.
    """
    values = config_json.values
    if not values.get("auto_map") and ("n_embd" not in values or "hidden_size" in values):
        return config_json
    custom = _checked(config_json.with_aliases(_NOMIC_ALIASES), _NOMIC_DEFAULTS, _NOMIC_VALUES)
    return _nomic_fields(custom, {"swiglu": "silu", "geglu": "gelu"})


def nomic_experts_json(config_json: CheckpointJson) -> CheckpointJson:
    """Translate the fields of Nomic BERT's code as `nomic_json`, for its variant without gates and with experts."""
    # The other two are those of `nomic_json`.
    config_json.choice("activation_function", dict.fromkeys(("swiglu", "geglu", "gelu")))
    custom = _checked(config_json.with_aliases(_NOMIC_ALIASES), _NOMIC_EXPERTS_DEFAULTS, _NOMIC_EXPERTS_VALUES)
    return _nomic_fields(custom, {"gelu": "gelu"})


def _nomic_fields(custom: CheckpointJson, activations: Mapping[str, str]) -> CheckpointJson:
    longest = custom.size("n_positions")
    if custom.values.get("rotary_scaling_factor"):
        longest = min(longest, custom.size("max_trained_positions"))
    translated = {
        "hidden_size": custom.size("n_embd"),
        "num_hidden_layers": custom.size("n_layer"),
        "num_attention_heads": custom.size("n_head"),
        "intermediate_size": custom.size("n_inner"),
        "hidden_act": custom.choice("activation_function", activations),
        "layer_norm_eps": custom.values["layer_norm_epsilon"],
        "max_position_embeddings": longest,
        "rope_parameters": {"rope_type": "default", "rope_theta": custom.values["rotary_emb_base"]},
    }
    return _translated(custom, translated)


def jina_json(config_json: CheckpointJson) -> CheckpointJson:
    """Translate the fields of the code of jina-embeddings-v3, whose model type is "xlm-roberta".

    Source: class XLMRobertaFlashConfig of the code, https://huggingface.co/jinaai/xlm-roberta-flash-implementation.
    """
    custom = _checked(config_json, _JINA_DEFAULTS, _JINA_VALUES)
    theta = custom.values["rotary_emb_base"]
    return _translated(custom, {"rope_parameters": {"rope_type": "default", "rope_theta": theta}})


def jina_v2_json(config_json: CheckpointJson) -> CheckpointJson:
    """Translate the fields of the code of jina-embeddings-v2, whose model type is "bert".

    Source: class JinaBertConfig of the code, https://huggingface.co/jinaai/jina-bert-implementation.
    """
    return _translated(_checked(config_json, _JINA_V2_DEFAULTS, _JINA_V2_VALUES), {})


def gte_json(config_json: CheckpointJson) -> CheckpointJson:
    """Translate the fields of GTE's code; return a configuration of `transformers` as it is.

    `transformers` keeps `auto_map` when it saves a checkpoint again, and writes `rope_parameters` for `rope_theta`.
    """
    values = config_json.values
    own_class = not values.get("auto_map") or (values.get("rope_parameters") and "rope_theta" not in values)
    return config_json if own_class else new_json(config_json)


def new_json(config_json: CheckpointJson) -> CheckpointJson:
    """Translate the fields of GTE's code, whose model type is "new", or "gte" in the copy of Snowflake.

    The type ntk of `rope_scaling` multiplies the base of rotary positions by the factor, and divides all frequencies by
    factor^(2 / head_dim), at every length (https://kexue.fm/archives/9706, equation 6).
    Source: class NTKScalingRotaryEmbedding of the code, https://huggingface.co/Alibaba-NLP/new-impl.
    """
    custom = _checked(config_json, {**_NEW_VALUES, "rope_theta": 10_000.0, "type_vocab_size": 1}, _NEW_VALUES)
    theta, scaling = custom.values["rope_theta"], custom.values.get("rope_scaling")
    parameters = {"rope_type": "default", "rope_theta": theta}
    # When transformers 5 saves the code's configuration again, `rope_parameters` replaces `rope_scaling`, but the code
    # does not read `rope_parameters`: the scaling of the saved checkpoint is unknown.
    if (custom.values.get("rope_parameters") or parameters) != parameters:
        raise custom.error("rope_parameters", "remove it, and restore rope_theta and rope_scaling of the original")
    if scaling:
        if not isinstance(scaling, dict) or scaling.keys() - {"type", "factor", "mixed_b"}:
            raise custom.error("rope_scaling", "it must be an object with type and factor")
        factor: Any = scaling.get("factor")
        if scaling.get("type") != "ntk" or scaling.get("mixed_b") is not None:
            raise custom.error("rope_scaling", "only type 'ntk' without mixed_b is supported")
        if type(factor) not in (int, float) or not factor >= 1:
            raise custom.error("rope_scaling", "factor must be a number of at least 1")
        if type(theta) not in (int, float):
            raise custom.error("rope_theta", "it must be a number")
        width = custom.size("hidden_size") // custom.size("num_attention_heads")
        parameters |= {"rope_type": "linear", "rope_theta": theta * factor, "factor": factor ** (2 / width)}
    return _translated(custom, {"rope_parameters": parameters})


def _checked(config_json: CheckpointJson, defaults: Mapping[str, Any], supported: Mapping[str, Any]) -> CheckpointJson:
    """Return a configuration with the defaults of its code, and refuse values that are not supported."""
    filled = replace(config_json, values={**defaults, **config_json.values})
    for name, value in supported.items():
        # The code takes null as false.
        if filled.values[name] == value or (value is False and filled.values[name] is None):
            continue
        if name in config_json.values:
            raise config_json.error(name, f"the export supports only {value!r}")
        default = f"{name}, which the code takes as {filled.values[name]!r}"
        raise CheckpointError(f"{config_json.path} lacks {default}: the export supports only {value!r}")
    return filled


def _translated(custom: CheckpointJson, fields: Mapping[str, Any]) -> CheckpointJson:
    # The families of the export read these fields; the code reads none of them, or `fields` stands for them.
    unread = {"head_dim", "rope_scaling", "rope_theta", "rope_parameters", "partial_rotary_factor"}
    return replace(custom, values={name: custom.values[name] for name in custom.values.keys() - unread} | {**fields})
