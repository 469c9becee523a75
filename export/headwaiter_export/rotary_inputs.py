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
from headwaiter_export.weights import take_tensor

_TYPES = "embeddings.token_type_embeddings.weight"
_LAYER_TYPES = {"full_attention": False, "sliding_attention": True}


@dataclass(frozen=True, kw_only=True)
class SplitHalfInput(TokenInput):
    """Token ids of type 0, in a family that rotates the first half of a head together with its second half.

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
            "rotary_theta": self._theta(config_json),
        }

    def _theta(self, config_json: CheckpointJson) -> float:
        name = "rope_scaling" if config_json.values.get("rope_scaling") else "rope_parameters"
        parameters = config_json.values.get(name) or {}
        return read_theta(config_json, name, parameters, config_json.values.get("rope_theta", self.theta))

    @override
    def fold_tensors(self, tensors: dict[str, Tensor], config_json: CheckpointJson, config: EncoderConfig) -> None:
        """Add the vector of token type 0 to all others, split projections, and pair neighbours in queries and keys."""
        types = config_json.size("type_vocab_size", least=0) if self.has_types else 0
        if types:
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
        theta, local_theta = read_layer_thetas(
            config_json, ("global_rope_theta", self.theta), ("local_rope_theta", self.local_theta)
        )
        local_layers = _local_layers(config_json)
        return {
            "vocabulary_size": config_json.size("vocab_size"),
            "max_tokens": config_json.size("max_position_embeddings"),
            "rotary_theta": theta,
            "local_rotary_theta": local_theta,
            "local_layers": local_layers,
            # transformers allows distances up to half of this field.
            "window": config_json.size("local_attention", least=0) // 2 if local_layers else 0,
        }

    @override
    def fold_tensors(self, tensors: dict[str, Tensor], config_json: CheckpointJson, config: EncoderConfig) -> None:
        """Split projections as in the base class, and give norms without bias a bias of zeros."""
        super().fold_tensors(tensors, config_json, config)
        if config_json.flag("norm_bias", default=False):
            return
        for name in [name for name in tensors if name.endswith("norm.weight")]:
            bias = f"{name.removesuffix('weight')}bias"
            if bias in tensors:
                raise CheckpointError(f"the checkpoint has tensor {bias}, but norm_bias is false: correct config.json")
            tensors[bias] = torch.zeros(tensors[name].shape)


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
    if len(kinds) != layers or not set(kinds) <= _LAYER_TYPES.keys():
        raise config_json.error(
            "layer_types", f"it must name one of {', '.join(_LAYER_TYPES)} for each of {layers} layers"
        )
    return [number for number, kind in enumerate(kinds) if _LAYER_TYPES[kind]]


def read_layer_thetas(
    config_json: CheckpointJson, full: tuple[str, float], sliding: tuple[str, float]
) -> tuple[float, float]:
    """Return the bases of the rotary angles of layers that attend to all tokens, and of those that attend locally.

    For both, `full` and `sliding` have the field that names the base if rope_parameters does not, and its default.
    """
    parameters = config_json.values.get("rope_parameters") or {}
    if not isinstance(parameters, dict) or not parameters.keys() <= _LAYER_TYPES.keys():
        raise config_json.error("rope_parameters", f"it must be an object of {', '.join(_LAYER_TYPES)}")
    theta, local_theta = (
        read_theta(config_json, "rope_parameters", parameters.get(kind) or {}, config_json.values.get(*default))
        for kind, default in zip(_LAYER_TYPES, (full, sliding), strict=True)
    )
    return theta, local_theta


def read_theta(config_json: CheckpointJson, name: str, parameters: object, default: Any) -> float:
    """Return the base of the rotary angles that `parameters`, in field `name` of config.json, describe."""
    if not isinstance(parameters, dict) or not parameters.keys() <= {"rope_type", "type", "rope_theta"}:
        raise config_json.error(name, "only rope_type and rope_theta are supported")
    if parameters.get("rope_type", parameters.get("type", "default")) != "default":
        raise config_json.error(name, "only rope_type 'default' is supported")
    theta = parameters.get("rope_theta", default)
    if type(theta) not in (int, float):
        raise CheckpointError(f"{config_json.path} has rope_theta {theta!r}: it must be a number")
    return float(theta)
