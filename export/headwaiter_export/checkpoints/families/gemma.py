"""The families of Gemma, Gemma 2 and Gemma 3's text models, causal, or bidirectional as EmbeddingGemma."""

import math
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from typing_extensions import override

from headwaiter_export.checkpoints.activations import ACTIVATIONS
from headwaiter_export.checkpoints.families.decoders import LLAMA, DecoderInput
from headwaiter_export.checkpoints.families.rotary import read_layer_rotary, read_layer_types
from headwaiter_export.checkpoints.json_files import CheckpointJson
from headwaiter_export.config.choices import Activation, Norm
from headwaiter_export.config.encoder import EncoderConfig

_BIDIRECTIONAL = "use_bidirectional_attention"


@dataclass(frozen=True, kw_only=True)
class GemmaInput(DecoderInput):
    """Token ids of a model whose constants are not in its weights."""

    @override
    def _is_causal(self, config_json: CheckpointJson) -> bool:
        if config_json.is_true(_BIDIRECTIONAL):
            raise config_json.error(_BIDIRECTIONAL, "transformers applies it with some kernels of attention only")
        return True

    @override
    def fold_tensors(self, tensors: dict[str, Tensor], config_json: CheckpointJson, config: EncoderConfig) -> None:
        """Fold the constants of Gemma into weights: norms multiply by 1 + weight, token vectors by √d_model."""
        super().fold_tensors(tensors, config_json, config)
        for name, tensor in tensors.items():
            if name.endswith("norm.weight"):
                tensors[name] = 1 + tensor.float()
            elif name == "embed_tokens.weight":
                tensors[name] = tensor.float() * math.sqrt(config.d_model)


@dataclass(frozen=True, kw_only=True)
class Gemma2Input(GemmaInput):
    """Token ids of a model whose scores are capped; every second layer attends locally, unless config.json says which.

    Scores are multiplied by 1 / √query_pre_attn_scalar.
    """

    @override
    def sizes(self, config_json: CheckpointJson) -> dict[str, Any]:
        cap = config_json.values["attn_logit_softcapping"]
        if cap is not None and (type(cap) not in (int, float) or not cap > 0):
            raise config_json.error("attn_logit_softcapping", "it must be a number above 0, or null")
        return {**super().sizes(config_json), "score_cap": float(cap or 0)}

    @override
    def _local_layers(self, config_json: CheckpointJson) -> list[int]:
        return _local_layers(config_json, 2)

    @override
    def fold_tensors(self, tensors: dict[str, Tensor], config_json: CheckpointJson, config: EncoderConfig) -> None:
        """Fold the constants of Gemma into weights."""
        super().fold_tensors(tensors, config_json, config)
        scale = _query_scale(config_json, config)
        for name, tensor in tensors.items():
            if name.rpartition(".")[0].endswith(".q_proj"):
                tensors[name] = scale * tensor.float()


@dataclass(frozen=True, kw_only=True)
class Gemma3Input(GemmaInput):
    """Token ids of an encoder whose local layers have a rotary base of their own.

    Attributes:
        local_theta: base of the rotary angles of local layers if config.json names no base.
    """

    local_theta: float

    @override
    def _rotary(self, config_json: CheckpointJson) -> dict[str, Any]:
        return read_layer_rotary(
            config_json,
            ("rope_theta", self.theta),
            ("rope_local_base_freq", self.local_theta),
            scales_sliding=False,
        )

    @override
    def _is_causal(self, config_json: CheckpointJson) -> bool:
        return not config_json.is_true(_BIDIRECTIONAL)

    @override
    def _window(self, config_json: CheckpointJson, *, causal: bool) -> int:
        """Return the largest distance in local layers; without a causal mask, half of the field in each direction."""
        return super()._window(config_json, causal=True) if causal else config_json.size("sliding_window", least=0) // 2

    @override
    def _local_layers(self, config_json: CheckpointJson) -> list[int]:
        return _local_layers(config_json, config_json.size("sliding_window_pattern"))

    @override
    def fold_tensors(self, tensors: dict[str, Tensor], config_json: CheckpointJson, config: EncoderConfig) -> None:
        """Fold the constants of Gemma into weights; scores are multiplied by 1 / √query_pre_attn_scalar."""
        super().fold_tensors(tensors, config_json, config)
        scale = _query_scale(config_json, config)
        for name, tensor in tensors.items():
            if name.endswith(".q_norm.weight"):
                tensors[name] = scale * tensor


def _local_layers(config_json: CheckpointJson, period: int) -> list[int]:
    """Return the numbers of the layers that attend locally: as config.json says, or all but the last of each period."""
    if config_json.values.get("layer_types") is not None:
        return read_layer_types(config_json)
    return [number for number in range(config_json.size("num_hidden_layers")) if (number + 1) % period]


def _query_scale(config_json: CheckpointJson, config: EncoderConfig) -> float:
    """Return the factor of queries that turns 1 / √head_dim into 1 / √query_pre_attn_scalar."""
    return math.sqrt(config.head_dim / config_json.size("query_pre_attn_scalar"))


GEMMA = replace(
    LLAMA,
    input=GemmaInput(theta=10_000.0),
    # The first release named the exact gelu, and means its approximation.
    activations={**ACTIVATIONS, "gelu": Activation.GELU_TANH},
    boolean_fields={name: field for name, field in LLAMA.boolean_fields.items() if field == "attention_bias"},
    fixed_fields={**LLAMA.fixed_fields, "up_bias": False, "down_bias": False},
    is_causal=(True,),
)
_SANDWICH_NAMES = {
    "attention_end_norm": "post_attention_layernorm",
    "feed_forward_norm": "pre_feedforward_layernorm",
    "feed_forward_end_norm": "post_feedforward_layernorm",
}
GEMMA2 = replace(
    GEMMA,
    input=Gemma2Input(theta=10_000.0),
    activations=ACTIVATIONS,
    activation_field="hidden_activation",
    layer_module_names={**LLAMA.layer_module_names, **_SANDWICH_NAMES},
    fixed_fields={**GEMMA.fixed_fields, "norm": Norm.SANDWICH},
)
_NOT_IN_GEMMA3 = "attn_logit_softcapping"
GEMMA3 = replace(
    GEMMA2,
    input=Gemma3Input(theta=1_000_000.0, local_theta=10_000.0),
    fixed_fields={**GEMMA2.fixed_fields, "query_key_norm": True},
    default_values={"sliding_window_pattern": 6},
    required_fields={_NOT_IN_GEMMA3: None},
)
