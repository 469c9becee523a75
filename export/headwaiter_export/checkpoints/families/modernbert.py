"""The family of ModernBERT (https://arxiv.org/abs/2412.13663)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from headwaiter_export.checkpoints.families.family import (
    NO_BIASES,
    USUAL_SIZES,
    Family,
    SequenceHead,
    VocabularyNames,
)
from headwaiter_export.checkpoints.families.rotary import (
    QKV,
    ROTARY_FIELDS,
    SplitHalfInput,
    read_layer_rotary,
    read_layer_types,
)
from headwaiter_export.checkpoints.json_files import CheckpointError, CheckpointJson
from headwaiter_export.config.choices import Norm
from headwaiter_export.config.encoder import EncoderConfig


@dataclass(frozen=True, kw_only=True)
class ModernBertInput(SplitHalfInput):
    """Token ids without types, for layers of which some attend locally, with a rotary base of their own.

    Attributes:
        local_theta: base of the rotary angles of local layers if config.json names no base.
    """

    local_theta: float

    @override
    def sizes(self, config_json: CheckpointJson) -> dict[str, Any]:
        heads, width = config_json.size("num_attention_heads"), config_json.size("hidden_size")
        if config_json.values.get("head_dim") not in (None, width // heads):
            raise config_json.error("head_dim", f"it must be {width // heads}, hidden_size / num_attention_heads")
        local_layers = _local_layers(config_json)
        return {
            "vocabulary_size": config_json.size("vocab_size"),
            "max_tokens": config_json.size("max_position_embeddings"),
            **read_layer_rotary(
                config_json,
                ("global_rope_theta", self.theta),
                ("local_rope_theta", self.local_theta),
                scales_sliding=True,
            ),
            "local_layers": local_layers,
            # transformers allows distances up to half of this field.
            "window": config_json.size("local_attention", least=0) // 2 if local_layers else 0,
        }

    @override
    def fold_tensors(self, tensors: dict[str, Tensor], config_json: CheckpointJson, config: EncoderConfig) -> None:
        """Split projections as in the base class, and give norms and the head's first layer biases of zeros."""
        super().fold_tensors(tensors, config_json, config)
        for flag, ending in (("norm_bias", "norm.weight"), ("classifier_bias", "head.dense.weight")):
            if config_json.flag(flag, default=False):
                continue
            for name in [name for name in tensors if name.endswith(ending)]:
                bias = f"{name.removesuffix('weight')}bias"
                if bias in tensors:
                    raise CheckpointError(f"the checkpoint has tensor {bias}, but {flag} is false: correct config.json")
                tensors[bias] = torch.zeros(tensors[name].shape[:1])
        if config.vocabulary_head is not None and not config_json.flag("decoder_bias", default=True):
            if "decoder.bias" in tensors:
                raise config_json.error("decoder_bias", "the checkpoint has tensor decoder.bias: correct config.json")
            tensors["decoder.bias"] = torch.zeros(config.vocabulary_size)


def _local_layers(config_json: CheckpointJson) -> list[int]:
    """Return the numbers of the layers that attend locally."""
    layers = config_json.size("num_hidden_layers")
    if config_json.values.get("layer_types") is None:
        period = config_json.size("global_attn_every_n_layers")
        return [number for number in range(layers) if number % period]
    return read_layer_types(config_json)


MODERNBERT = Family(
    input=ModernBertInput(
        has_types=False,
        theta=160_000.0,
        local_theta=10_000.0,
        words="embeddings.tok_embeddings.weight",
        fused={"attn.Wqkv": QKV, "mlp.Wi": ("gate", "up")},
    ),
    tensor_prefix="model.",
    size_fields=USUAL_SIZES,
    activation_field="hidden_activation",
    module_names={
        "embedding.tokens": "embeddings.tok_embeddings",
        "embedding.norm": "embeddings.norm",
        "norm": "final_norm",
    },
    layer_prefix="layers",
    layer_module_names={
        "attention.query": "attn.Wqkv.query",
        "attention.key": "attn.Wqkv.key",
        "attention.value": "attn.Wqkv.value",
        "attention.output": "attn.Wo",
        "attention_norm": "attn_norm",
        "feed_forward.gate": "mlp.Wi.gate",
        "feed_forward.up": "mlp.Wi.up",
        "feed_forward.down": "mlp.Wo",
        "feed_forward_norm": "mlp_norm",
    },
    ignored_prefixes=("head.", "decoder."),
    boolean_fields={
        **dict.fromkeys(("query_bias", "key_bias", "value_bias", "output_bias"), "attention_bias"),
        **dict.fromkeys(("up_bias", "down_bias"), "mlp_bias"),
    },
    fixed_fields={
        **NO_BIASES,
        **ROTARY_FIELDS,
        "norm": Norm.PRE,
        "first_norm": False,
        "final_norm": True,
        "gated": True,
    },
    norm_eps_field="norm_eps",
    default_values={"global_attn_every_n_layers": 3},
    sequence_head=SequenceHead(
        "classifier",
        "head.dense",
        activation_field="classifier_activation",
        norm="head.norm",
        pooling_field="classifier_pooling",
        scores_tokens=True,
    ),
    vocabulary_head=VocabularyNames(
        "head.dense", "head.norm", "decoder", "decoder.bias", activation_field="classifier_activation"
    ),
    # In transformers, `sliding_window` overrides `local_attention`.
    required_fields={"sliding_window": None},
)
