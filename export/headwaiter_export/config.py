"""Every choice an encoder can make, validated once."""

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from enum import StrEnum
from typing import Any, TypeVar

Choice = TypeVar("Choice", bound=StrEnum)

# Far above every size of a real encoder, and low enough for products of sizes to stay within 64 bits.
MOST = 2**24


class ConfigError(ValueError):
    """A field of an encoder's configuration is wrong."""


class WeightsError(ValueError):
    """A tensor does not fit its encoder's configuration."""


class Activation(StrEnum):
    """The non-linearity of the feed-forward layers."""

    GELU = "gelu"
    GELU_TANH = "gelu_tanh"
    RELU = "relu"
    SILU = "silu"


class Positions(StrEnum):
    """How a token's position is told to the encoder: added to its embedding, turning its queries and keys, or not."""

    LEARNED = "learned"
    SINUSOIDAL = "sinusoidal"
    ROTARY = "rotary"
    NONE = "none"


class Mask(StrEnum):
    """Which tokens of its sequence a token attends to: all, itself and those before it, or all others."""

    NONE = "none"
    CAUSAL = "causal"
    SELF_EXCLUDING = "self_excluding"


class Norm(StrEnum):
    """Where a LayerNorm stands: after a block's residual sum, before the block, or nowhere."""

    POST = "post"
    PRE = "pre"
    NONE = "none"


class Pooling(StrEnum):
    """How the hidden rows of a sequence become one vector."""

    NONE = "none"
    MEAN = "mean"
    CLS = "cls"
    MAX = "max"
    LAST = "last"


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """An encoder of self-attention; what is left out is as in BERT (https://arxiv.org/abs/1810.04805).

    Attributes:
        vocabulary_size: token ids are 0 to vocabulary_size - 1; 0 for an encoder of features.
        feature_width: width of a feature vector; 0 for an encoder of token ids.
        feature_projection: a linear layer takes features to d_model; without it they are the first rows as they come.
        d_model: width of a hidden row.
        heads: attention heads of a layer.
        head_dim: width of a head's queries and keys; where it is 0, the heads share d_model evenly.
        value_dim: width of a head's values, and so of its output; where it is 0, it is head_dim.
        learned_temperature: every head divides its scores by a learned temperature, not by √head_dim.
        query_bias: the projection to queries has a bias.
        key_bias: the projection to keys has one.
        value_bias: the projection to values has one.
        output_projection: a linear layer follows the heads; without it their outputs are concatenated and that is all.
        output_bias: the output projection has a bias; false where there is none to have it.
        mask: which tokens a token attends to.
        layers: encoder layers.
        d_ff: width of the feed-forward layers; 0 for layers of attention alone.
        residual: a block's input is added to its output.
        norm: where the blocks' LayerNorm stands.
        final_norm: a LayerNorm follows the last layer.
        max_tokens: most tokens of a sequence.
        positions: how positions are told.
        embedding_norm: a LayerNorm follows the embeddings.
        activation: between the feed-forward layers.
        norm_eps: what LayerNorm adds to the variance.
        pooling: how a sequence becomes one vector.
        normalize: pooled vectors are scaled to unit length.

    Raises:
        ConfigError: a field is wrong; the message names it and says what would be right.
    """

    vocabulary_size: int = 0
    feature_width: int = 0
    feature_projection: bool = True
    d_model: int
    heads: int
    head_dim: int = 0
    value_dim: int = 0
    learned_temperature: bool = False
    query_bias: bool = True
    key_bias: bool = True
    value_bias: bool = True
    output_projection: bool = True
    output_bias: bool = True
    mask: Mask = Mask.NONE
    layers: int
    d_ff: int
    residual: bool = True
    norm: Norm = Norm.POST
    final_norm: bool = False
    max_tokens: int
    positions: Positions = Positions.LEARNED
    embedding_norm: bool = True
    activation: Activation = Activation.GELU
    norm_eps: float = 1e-12
    pooling: Pooling = Pooling.MEAN
    normalize: bool = False

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            object.__setattr__(self, name, _choice(name, getattr(self, name), choices))
        for name in ("d_model", "heads", "layers", "max_tokens"):
            _require_count(name, getattr(self, name))
        for name in ("vocabulary_size", "feature_width", "d_ff", "head_dim", "value_dim"):
            _require_count(name, getattr(self, name), least=0)
        if bool(self.vocabulary_size) == bool(self.feature_width):
            raise ConfigError("an encoder takes token ids or features: set vocabulary_size or feature_width, not both")
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} is {getattr(self, name)!r}: it must be true or false")
        if self.takes_tokens:
            object.__setattr__(self, "feature_projection", False)
        elif not self.feature_projection and self.feature_width != self.d_model:
            raise ConfigError(
                f"feature_projection is false, but feature_width is {self.feature_width} and d_model {self.d_model}: "
                "make them equal, or turn it on"
            )
        self._resolve_widths()
        if self.max_tokens < self.min_tokens:
            raise ConfigError(
                f"max_tokens is {self.max_tokens}: it must be {self.min_tokens} or more where mask is {self.mask}"
            )
        self._refuse_odd_widths()
        if not isinstance(self.norm_eps, float) or not 0 < self.norm_eps < 1:
            raise ConfigError(f"norm_eps is {self.norm_eps!r}: it must be a number between 0 and 1")
        if self.normalize and self.pooling is Pooling.NONE:
            raise ConfigError("normalize scales pooled vectors, and pooling is none: choose a pooling or turn it off")
        if self.pooling is Pooling.CLS and not self.takes_tokens and self.positions is not Positions.LEARNED:
            raise ConfigError(
                "pooling is cls, but features have no class token: choose mean, max or last, or learned positions, "
                "by which a class row that the caller sends first is told from the others"
            )

    def _resolve_widths(self) -> None:
        """Fill in the widths that were left open, and refuse those that do not fit together."""
        if not self.head_dim:
            if self.d_model % self.heads:
                raise ConfigError(f"heads is {self.heads}, which does not divide d_model {self.d_model}: set head_dim")
            object.__setattr__(self, "head_dim", self.d_model // self.heads)
        if not self.value_dim:
            object.__setattr__(self, "value_dim", self.head_dim)
        if not self.output_projection:
            object.__setattr__(self, "output_bias", False)
        if self.width == self.d_model:
            return
        concatenated = f"{self.heads} heads of {self.value_dim} are {self.width} wide, and d_model is {self.d_model}"
        if self.residual:
            raise ConfigError(f"residual is true, but {concatenated}: turn it off, or output_projection on")
        if self.layers > 1:
            raise ConfigError(f"layers is {self.layers}, but {concatenated}: set it to 1, or turn output_projection on")

    def _refuse_odd_widths(self) -> None:
        """Refuse positions of sines and cosines where the width has no pairs for them."""
        paired = {Positions.SINUSOIDAL: "d_model", Positions.ROTARY: "head_dim"}.get(self.positions)
        if paired and getattr(self, paired) % 2:
            raise ConfigError(
                f"{paired} is {getattr(self, paired)}: it must be even where positions is {self.positions}"
            )

    @property
    def width(self) -> int:
        """Width of a layer's output: d_model, or that of all heads where no output projection follows them."""
        return self.d_model if self.output_projection else self.heads * self.value_dim

    @property
    def min_tokens(self) -> int:
        """Fewest tokens of a sequence: a token that does not attend to itself needs another one."""
        return 2 if self.mask is Mask.SELF_EXCLUDING else 1

    @property
    def takes_tokens(self) -> bool:
        """Whether the encoder takes token ids, not features."""
        return self.vocabulary_size != 0

    @property
    def token_input(self) -> str:
        """Name of a graph's main input."""
        return "input_ids" if self.takes_tokens else "features"

    def to_json(self) -> str:
        """Write the configuration as a JSON object."""
        return json.dumps(asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> "EncoderConfig":
        """Read what `to_json` wrote.

        Raises:
            ConfigError: the text is no JSON object, or a field is missing, unknown or wrong.
        """
        try:
            values = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"the configuration is not JSON: {error}") from None
        if not isinstance(values, dict):
            raise ConfigError("the configuration must be a JSON object")
        return cls.from_dict(values)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "EncoderConfig":
        """Take the fields by their names.

        Raises:
            ConfigError: a field is missing, unknown or wrong.
        """
        known = {each.name for each in fields(cls)}
        if unknown := sorted(values.keys() - known):
            raise ConfigError(f"unknown field {unknown[0]!r}: the fields are {', '.join(sorted(known))}")
        if missing := [each.name for each in fields(cls) if each.default is MISSING and each.name not in values]:
            raise ConfigError(f"{missing[0]} is missing")
        return cls(**values)


@dataclass(frozen=True)
class Prompt:
    """A text that goes before texts of one kind.

    Attributes:
        name: what requests call it.
        text: itself.
        tokens: how many stand before those of the text, special ones included; 0 for an empty prompt.
    """

    name: str
    text: str
    tokens: int


@dataclass(frozen=True)
class TextConfig:
    """How texts become token ids.

    Attributes:
        tokenizer: a `tokenizers` file (tokenizer.json) that neither truncates nor pads.
        max_tokens: most tokens of a text, special tokens included.
        prompts: what texts may have put before them.
        default_prompt: name of the one that they have unless they ask for another; empty for none.
        pooling_skips_prompt: pooled vectors leave out the rows of a prompt, and of special tokens before it.
    """

    tokenizer: str
    max_tokens: int
    prompts: tuple[Prompt, ...] = ()
    default_prompt: str = ""
    pooling_skips_prompt: bool = False


_CHOICES: dict[str, type[StrEnum]] = {
    "mask": Mask,
    "norm": Norm,
    "positions": Positions,
    "activation": Activation,
    "pooling": Pooling,
}
_SWITCHES = (
    "feature_projection",
    "learned_temperature",
    "query_bias",
    "key_bias",
    "value_bias",
    "output_projection",
    "output_bias",
    "residual",
    "final_norm",
    "embedding_norm",
    "normalize",
)


def _choice(name: str, value: Any, choices: type[Choice]) -> Choice:
    try:
        return choices(value)
    except ValueError:
        raise ConfigError(f"{name} is {value!r}: choose one of {', '.join(choices)}") from None


def _require_count(name: str, value: Any, least: int = 1) -> None:
    if type(value) is not int or not least <= value <= MOST:
        raise ConfigError(f"{name} is {value!r}: it must be a whole number from {least} to {MOST}")
