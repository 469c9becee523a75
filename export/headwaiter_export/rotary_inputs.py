"""The inputs of checkpoint families with rotary positions, whose layers store several projections in one tensor."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from headwaiter_export.checkpoint_inputs import TokenInput
from headwaiter_export.checkpoint_json import CheckpointError, CheckpointJson
from headwaiter_export.config import EncoderConfig
from headwaiter_export.rotary_parameters import LAYER_TYPES, read_layer_rotary, read_rotary
from headwaiter_export.weights import take_tensor

_TYPES = "embeddings.token_type_embeddings.weight"


@dataclass(frozen=True, kw_only=True)
class SplitHalfInput(TokenInput):
    """Token ids of a family that rotates the first half of a head together with its second half.

    Attributes:
        theta: base of the rotary angles if config.json names no base.
        words: name of the table of token vectors.
        fused: modules that hold several projections, with their parts in the order of their rows.
    """

    theta: float
    words: str = "embeddings.word_embeddings.weight"
    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @override
    def sizes(self, config_json: CheckpointJson) -> dict[str, Any]:
        head_dim = config_json.values.get("head_dim")
        return {
            "vocabulary_size": config_json.size("vocab_size"),
            "max_tokens": config_json.size("max_position_embeddings"),
            "head_dim": 0 if head_dim is None else config_json.size("head_dim"),
            **self._rotary(config_json),
        }

    def _rotary(self, config_json: CheckpointJson) -> dict[str, Any]:
        """Read the bases and the scalings of the rotary positions."""
        return read_rotary(config_json, self.theta)

    @override
    def fold_tensors(self, tensors: dict[str, Tensor], config_json: CheckpointJson, config: EncoderConfig) -> None:
        """Fold the vector of the only token type, split projections, and pair neighbours in queries and keys."""
        types = config_json.size("type_vocab_size", least=0) if self.has_types else 0
        if types and not config.token_types:
            table = take_tensor(tensors, self.words, (config.vocabulary_size, config.d_model))
            tensors[self.words] = table + take_tensor(tensors, _TYPES, (types, config.d_model))[0]
        rows = {
            **dict.fromkeys(("query", "key"), config.heads * config.head_dim),
            "value": config.heads * config.value_dim,
            **dict.fromkeys(("gate", "up"), config.d_ff),
        }
        for name, tensor in list(tensors.items()):
            module, _, kind = name.rpartition(".")
            for fused, parts in self.fused.items():
                if not module.endswith(f".{fused}"):
                    continue
                split = [rows[part] for part in parts]
                if tensor.shape[:1] != (sum(split),):
                    raise CheckpointError(
                        f"tensor {name} has shape {list(tensor.shape)}: config.json requires {sum(split)} rows"
                    )
                del tensors[name]
                for part, projection in zip(parts, torch.split(tensor, split), strict=True):
                    paired = pair_neighbours(projection, config.heads) if part in ("query", "key") else projection
                    tensors[f"{module}.{part}.{kind}"] = paired


def pair_neighbours(rows: Tensor, heads: int) -> Tensor:
    """Reorder the rows [H·n, ...] of queries or keys, so that rows i and i + n/2 of a head become 2i and 2i + 1.

    Queries and keys are reordered alike, so their products do not change.
    """
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


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


def _local_layers(config_json: CheckpointJson) -> list[int]:
    """Return the numbers of the layers that attend locally."""
    layers = config_json.size("num_hidden_layers")
    if config_json.values.get("layer_types") is None:
        period = (
            config_json.size("global_attn_every_n_layers") if "global_attn_every_n_layers" in config_json.values else 3
        )
        return [number for number in range(layers) if number % period]
    return read_layer_types(config_json)


def read_layer_types(config_json: CheckpointJson) -> list[int]:
    """Return the numbers of the layers that attend locally, as the field layer_types names them."""
    kinds, layers = config_json.strings("layer_types"), config_json.size("num_hidden_layers")
    if len(kinds) != layers or not set(kinds) <= LAYER_TYPES.keys():
        raise config_json.error(
            "layer_types", f"it must name one of {', '.join(LAYER_TYPES)} for each of {layers} layers"
        )
    return [number for number, kind in enumerate(kinds) if LAYER_TYPES[kind]]
