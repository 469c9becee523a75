"""What families with rotary positions share: an input with fused projections, and how config.json names the rotations.

The fields rope_parameters in config.json, and rope_scaling of older releases, have the meaning that `transformers` 5
gives them in modeling_rope_utils.py.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from headwaiter_export.checkpoints.families.family import TokenInput
from headwaiter_export.checkpoints.json_files import CheckpointError, CheckpointJson
from headwaiter_export.checkpoints.weights import take_tensor
from headwaiter_export.config.choices import Positions
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.config.field_checks import ConfigError
from headwaiter_export.config.rotary_scaling import RotaryScaling, ScalingKind

_TYPES = "embeddings.token_type_embeddings.weight"
LAYER_TYPES = {"full_attention": False, "sliding_attention": True}
# The parameters of each type, without rope_type, type and rope_theta. Type "dynamic" changes only the frequencies of
# sequences longer than max_position_embeddings, which is the maximum of the encoder.
_PARAMETERS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
    "yarn": (
        *("factor", "original_max_position_embeddings", "beta_fast", "beta_slow"),
        *("attention_factor", "mscale", "mscale_all_dim", "truncate"),
    ),
}
# The names that config.json has for fields of RotaryScaling, where they differ.
_TRAINED = {"trained_tokens": "original_max_position_embeddings"}
_NAMES = {
    "linear": {},
    "llama3": {**_TRAINED, "slow_turns": "low_freq_factor", "fast_turns": "high_freq_factor"},
    "yarn": {**_TRAINED, "slow_turns": "beta_slow", "fast_turns": "beta_fast", "whole_pairs": "truncate"},
}
# The fields of EncoderConfig of families whose angles are those of transformers, for `fixed_fields`.
ROTARY_FIELDS: dict[str, Any] = {"positions": Positions.ROTARY, "rotary_float32": True}
# The parts of a module that holds three projections, for `fused`.
QKV = ("query", "key", "value")


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


def read_layer_types(config_json: CheckpointJson) -> list[int]:
    """Return the numbers of the layers that attend locally, as the field layer_types names them."""
    kinds, layers = config_json.strings("layer_types"), config_json.size("num_hidden_layers")
    if len(kinds) != layers or not set(kinds) <= LAYER_TYPES.keys():
        raise config_json.error(
            "layer_types", f"it must name one of {', '.join(LAYER_TYPES)} for each of {layers} layers"
        )
    return [number for number, kind in enumerate(kinds) if LAYER_TYPES[kind]]


def read_rotary(config_json: CheckpointJson, default_theta: float) -> dict[str, Any]:
    """Return the fields of EncoderConfig for rotary positions that are the same in all layers."""
    name = "rope_scaling" if config_json.values.get("rope_scaling") else "rope_parameters"
    values = config_json.values.get(name) or {}
    # transformers prefers this field to the parameter of the same name.
    trained = config_json.values.get("original_max_position_embeddings")
    if isinstance(values, dict) and trained is not None and _type(values) in ("llama3", "yarn"):
        values = {**values, "original_max_position_embeddings": trained}
    parameters = _Parameters(config_json, name, values)
    scaling = parameters.scaling()
    return {
        "rotary_theta": parameters.theta(config_json.values.get("rope_theta", default_theta)),
        "rotary_scaling": scaling,
        "local_rotary_scaling": scaling,
    }


def read_layer_rotary(
    config_json: CheckpointJson, full: tuple[str, float], sliding: tuple[str, float], *, scales_sliding: bool
) -> dict[str, Any]:
    """Return the fields of EncoderConfig for rotary positions that differ between global and local layers.

    Args:
        config_json: content of config.json.
        full: field that names the base of the angles of global layers if rope_parameters does not, and its default.
        sliding: the same for local layers.
        scales_sliding: whether rope_scaling, a field of older releases, also applies to local layers.
    """
    values, scaling = (config_json.values.get(name) or {} for name in ("rope_parameters", "rope_scaling"))
    if not isinstance(values, dict) or not values.keys() <= LAYER_TYPES.keys():
        raise config_json.error("rope_parameters", f"it must be an object of {', '.join(LAYER_TYPES)}")
    if not isinstance(scaling, dict) or ("type" in scaling and "rope_type" not in scaling):
        raise config_json.error("rope_scaling", "it must be an object that names its type in rope_type")
    fields: dict[str, Any] = {}
    for kind, prefix, default in (("full_attention", "", full), ("sliding_attention", "local_", sliding)):
        own = values.get(kind) or {}
        if isinstance(own, dict) and scaling and (not prefix or scales_sliding):
            name, own = "rope_scaling", {**own, **scaling}
        else:
            name = "rope_parameters"
        parameters = _Parameters(config_json, name, own)
        # transformers does not read this parameter of a layer type.
        if isinstance(own, dict) and own.get("truncate", True) is not True:
            raise config_json.error(name, "truncate must be true")
        fields[f"{prefix}rotary_theta"] = parameters.theta(config_json.values.get(*default))
        fields[f"{prefix}rotary_scaling"] = parameters.scaling()
    return fields


@dataclass(frozen=True)
class _Parameters:
    """The parameters of one kind of layer, which are part of the field `name` of config.json."""

    config_json: CheckpointJson
    name: str
    values: Any

    def __post_init__(self) -> None:
        self.config_json.require({"partial_rotary_factor": 1.0})
        if not isinstance(self.values, dict):
            raise self._error("it must be an object")
        kind = _type(self.values)
        if not isinstance(kind, str) or kind not in _PARAMETERS:
            raise self._error(f"rope_type must be one of {', '.join(_PARAMETERS)}")
        known = {"rope_type", "type", "rope_theta", *_PARAMETERS[kind]}
        if unknown := sorted(self.values.keys() - known):
            raise self._error(f"the export does not support {unknown[0]} with rope_type {kind!r}")

    def theta(self, default: Any) -> float:
        """Return the base of the angles."""
        theta = self.values.get("rope_theta", default)
        if type(theta) not in (int, float) or not 0 < theta < math.inf:
            raise CheckpointError(f"{self.config_json.path} has rope_theta {theta!r:.99}: it must be a number above 0")
        return float(theta)

    def scaling(self) -> RotaryScaling | None:
        """Return the scaling; None if frequencies are not scaled at the lengths of the encoder."""
        kind = _type(self.values)
        if kind in ("default", "dynamic"):
            return None
        try:
            if kind == "linear":
                return RotaryScaling(kind=ScalingKind.LINEAR, factor=self._number("factor"))
            longest = self.config_json.size("max_position_embeddings")
            trained: Any = self.values.get("original_max_position_embeddings", longest)
            if kind == "llama3":
                return RotaryScaling(
                    kind=ScalingKind.LLAMA3,
                    factor=self._number("factor"),
                    trained_tokens=trained,
                    slow_turns=self._number("low_freq_factor"),
                    fast_turns=self._number("high_freq_factor"),
                )
            return self._yarn(longest, trained)
        except ConfigError as error:
            message = str(error)
            for own, name in _NAMES[kind].items():
                message = message.replace(own, name)
            raise self._error(message) from None

    def _yarn(self, longest: int, trained: Any) -> RotaryScaling:
        factor = self._number("factor", longest / trained if isinstance(trained, int) and trained else None)
        scales = self.values.get("mscale"), self.values.get("mscale_all_dim")
        attention_factor = 0.0
        if self.values.get("attention_factor") is not None:
            attention_factor = self._number("attention_factor")
        elif all(scales):
            over, under = (
                0.1 * self._number(name) * math.log(max(1.0, factor)) + 1 for name in ("mscale", "mscale_all_dim")
            )
            attention_factor = over / under
        return RotaryScaling(
            kind=ScalingKind.YARN,
            factor=factor,
            trained_tokens=trained,
            slow_turns=self._number("beta_slow", 1.0),
            fast_turns=self._number("beta_fast", 32.0),
            whole_pairs=self.values.get("truncate", True),
            attention_factor=attention_factor,
        )

    def _number(self, key: str, default: float | None = None) -> float:
        """Return a parameter above 0; the default if the parameter is missing or null."""
        value: Any = self.values.get(key)
        value = default if value is None else value
        if type(value) not in (int, float) or not 0 < value < math.inf:
            raise self._error(f"{key} must be a number above 0")
        return float(value)

    def _error(self, expected: str) -> CheckpointError:
        return self.config_json.error(self.name, expected)


def _type(values: dict[str, Any]) -> Any:
    return values.get("rope_type", values.get("type", "default"))
