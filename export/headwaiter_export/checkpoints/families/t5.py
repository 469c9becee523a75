"""The family of T5's encoders (https://arxiv.org/abs/1910.10683)."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from headwaiter_export.checkpoints.activations import ACTIVATIONS
from headwaiter_export.checkpoints.families.distance_buckets import fold_buckets
from headwaiter_export.checkpoints.families.family import Family, TokenInput
from headwaiter_export.checkpoints.json_files import CheckpointError, CheckpointJson
from headwaiter_export.config.choices import Activation, Norm, Positions
from headwaiter_export.config.encoder import EncoderConfig

_SHARED, _WORDS = "shared.weight", "encoder.embed_tokens.weight"
_BIAS = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias"
_GATED = "gated-"
# transformers reads gelu of a gated block as its approximation.
_ACTIVATIONS = {
    **ACTIVATIONS,
    **{f"{_GATED}{name}": activation for name, activation in ACTIVATIONS.items()},
    f"{_GATED}gelu": Activation.GELU_TANH,
}


@dataclass(frozen=True)
class T5Input(TokenInput):
    """Token ids of an encoder that adds a number to each score, one for each bucket of distances."""

    @override
    def sizes(self, config_json: CheckpointJson) -> dict[str, Any]:
        name = config_json.values["feed_forward_proj"]
        activation = config_json.choice("feed_forward_proj", _ACTIVATIONS)
        gated = name.startswith(_GATED)
        # transformers derives these fields from feed_forward_proj, but their values in config.json have priority.
        if "dense_act_fn" in config_json.values and config_json.choice("dense_act_fn", ACTIVATIONS) != activation:
            raise config_json.error("dense_act_fn", f"it must be the activation of feed_forward_proj, {name}")
        if config_json.flag("is_gated_act", default=gated) != gated:
            raise config_json.error("is_gated_act", f"it must fit feed_forward_proj, {name}")
        buckets = config_json.size("relative_attention_num_buckets", least=4)
        if config_json.size("relative_attention_max_distance") <= buckets // 4:
            raise config_json.error("relative_attention_max_distance", f"it must be more than {buckets // 4}")
        return {
            "vocabulary_size": config_json.size("vocab_size"),
            "max_tokens": config_json.size("n_positions"),
            "gated": gated,
        }

    @override
    def fold_tensors(self, tensors: dict[str, Tensor], config_json: CheckpointJson, config: EncoderConfig) -> None:
        """Give each distance its number, and multiply the queries by √head_dim: T5 does not scale its scores."""
        words = tensors.pop(_WORDS, None)
        if words is not None and not torch.equal(tensors.setdefault(_SHARED, words), words):
            raise CheckpointError(f"tensors {_SHARED} and {_WORDS} differ: transformers uses one table for both")
        buckets, farthest = (config_json.size(f"relative_attention_{name}") for name in ("num_buckets", "max_distance"))
        fold_buckets(tensors, _BIAS, config, buckets, farthest)
        for name, tensor in list(tensors.items()):
            if name.startswith("encoder.") and name.endswith(".SelfAttention.q.weight"):
                tensors[name] = tensor.float() * math.sqrt(config.head_dim)
            elif name.endswith(".DenseReluDense.wi.weight") and not config.gated:
                tensors[name.replace(".wi.", ".wi_1.")] = tensors.pop(name)


T5 = Family(
    input=T5Input(has_types=False),
    tensor_prefix="",
    size_fields={
        "d_model": "d_model",
        "heads": "num_heads",
        "head_dim": "d_kv",
        "layers": "num_layers",
        "d_ff": "d_ff",
    },
    activation_field="feed_forward_proj",
    activations=_ACTIVATIONS,
    module_names={"embedding.tokens": "shared", "norm": "encoder.final_layer_norm"},
    layer_prefix="encoder.block",
    layer_module_names={
        "attention.query": "layer.0.SelfAttention.q",
        "attention.key": "layer.0.SelfAttention.k",
        "attention.value": "layer.0.SelfAttention.v",
        "attention.output": "layer.0.SelfAttention.o",
        "attention_norm": "layer.0.layer_norm",
        "feed_forward.gate": "layer.1.DenseReluDense.wi_0",
        "feed_forward.up": "layer.1.DenseReluDense.wi_1",
        "feed_forward.down": "layer.1.DenseReluDense.wo",
        "feed_forward_norm": "layer.1.layer_norm",
    },
    shared_module_names={"attention.distances": _BIAS},
    ignored_prefixes=("decoder.", "lm_head."),
    fixed_fields={
        **dict.fromkeys(("query_bias", "key_bias", "value_bias", "output_bias", "up_bias", "down_bias"), False),
        "positions": Positions.NONE,
        "distance_bias": True,
        "norm": Norm.PRE,
        "final_norm": True,
        "rms_norm": True,
        "embedding_norm": False,
    },
    aliases={
        "hidden_size": "d_model",
        "num_attention_heads": "num_heads",
        "num_hidden_layers": "num_layers",
        "head_dim": "d_kv",
    },
    norm_eps_field="layer_norm_epsilon",
    default_norm_eps=1e-6,
    default_values={
        "d_kv": 64,
        "feed_forward_proj": "relu",
        # The length of the training. The encoder itself has no maximum.
        "n_positions": 512,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
    },
)
