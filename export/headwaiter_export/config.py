"""The configuration of an encoder, validated when it is created."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from typing import Any

# Greater than any size of a real encoder, and small enough for a product of two sizes to fit in 64 bits.
MAX_SIZE = 2**24


class ConfigError(ValueError):
    """A field of the configuration is missing, unknown or wrong."""


class WeightsError(ValueError):
    """A tensor does not fit the configuration."""


class Activation(StrEnum):
    """Activation between the two feed-forward layers; QUICK_GELU is x · sigmoid(1.702 x)."""

    GELU = "gelu"
    GELU_TANH = "gelu_tanh"
    QUICK_GELU = "quick_gelu"
    RELU = "relu"
    SILU = "silu"


class Positions(StrEnum):
    """How the encoder knows a token's position.

    LEARNED and SINUSOIDAL add a vector to the embedding. ROTARY rotates queries and keys. ROTARY_GRID adds learned
    vectors, and rotates the queries and keys of patches by their place in a grid. NONE ignores positions.
    """

    LEARNED = "learned"
    SINUSOIDAL = "sinusoidal"
    ROTARY = "rotary"
    ROTARY_GRID = "rotary_grid"
    NONE = "none"


class Mask(StrEnum):
    """Which tokens of its sequence a token attends to.

    NONE: all tokens. CAUSAL: itself and the tokens before it. SELF_EXCLUDING: all tokens but itself.
    """

    NONE = "none"
    CAUSAL = "causal"
    SELF_EXCLUDING = "self_excluding"


class Norm(StrEnum):
    """Place of a block's LayerNorm: after the residual sum (POST), before the block (PRE), or absent (NONE)."""

    POST = "post"
    PRE = "pre"
    NONE = "none"


class Pooling(StrEnum):
    """How the hidden rows of a sequence become one pooled vector."""

    NONE = "none"
    MEAN = "mean"
    CLS = "cls"
    MAX = "max"
    LAST = "last"


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """A self-attention encoder. The defaults are those of BERT (https://arxiv.org/abs/1810.04805).

    Attributes:
        vocabulary_size: number of token ids, 0 to vocabulary_size − 1; 0 for an encoder of features.
        feature_width: width of a feature row; 0 for an encoder of token ids.
        feature_projection: whether a linear layer maps features to d_model; otherwise features are the first rows.
        d_model: width of a hidden row.
        embedding_width: width of the embeddings, which a linear layer maps to d_model (https://arxiv.org/abs/1909.11942,
            section 3.1); 0 stands for d_model, without the linear layer.
        heads: attention heads of a layer.
        head_dim: width of a head's queries and keys; 0 stands for d_model / heads.
        value_dim: width of a head's values and context; 0 stands for head_dim.
        learned_temperature: whether T in softmax(q kᵀ / T) is learned for each head (https://arxiv.org/abs/2112.13492);
            otherwise T = √head_dim.
        query_bias: whether the query projection has a bias.
        key_bias: whether the key projection has a bias.
        value_bias: whether the value projection has a bias.
        output_projection: whether a linear layer W_O follows the concatenated heads.
        output_bias: whether W_O has a bias; becomes false without an output projection.
        mask: which tokens a token attends to.
        distance_bias: whether each head adds to the score of a query and a key a number that depends only on the
            distance between them, as in T5 (https://arxiv.org/abs/1910.10683, section 2.1) and MPNet.
        layers: number of encoder layers.
        d_ff: width between the two feed-forward layers, W_2 activation(W_1 x); 0 for attention alone.
        residual: whether a block's input is added to its output, x + block(x).
        norm: place of a block's LayerNorm: LayerNorm(x + block(x)) for post (https://arxiv.org/abs/1706.03762),
            x + block(LayerNorm(x)) for pre (https://arxiv.org/abs/2002.04745).
        final_norm: whether a LayerNorm follows the last layer.
        max_tokens: most tokens of a sequence.
        fixed_length: whether every sequence has exactly max_tokens tokens, because a position stands for a place in a
            grid of one size, as in models of images; a server then refuses all other lengths.
        prefix_rows: number of rows of zeros at the start of the features, to which the learned positions add the class,
            distillation and register tokens; a server refuses other values in these rows.
        positions: how the encoder knows a token's position; sinusoidal as in https://arxiv.org/abs/1706.03762, section
            3.5, rotary as in https://arxiv.org/abs/2104.09864, section 3.2, rotary_grid as in
            https://arxiv.org/abs/2508.10104.
        embedding_norm: whether a LayerNorm follows the embeddings.
        activation: activation function between the feed-forward layers.
        norm_eps: ε of LayerNorm, (x − mean) / √(variance + ε).
        pooling: how the hidden rows of a sequence become one vector.
        normalize: whether pooled vectors are scaled to unit length.

    Raises:
        ConfigError: a field is wrong; the message has the field, its value and the allowed values.
    """

    vocabulary_size: int = 0
    feature_width: int = 0
    feature_projection: bool = True
    d_model: int
    embedding_width: int = 0
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
    distance_bias: bool = False
    layers: int
    d_ff: int
    residual: bool = True
    norm: Norm = Norm.POST
    final_norm: bool = False
    max_tokens: int
    fixed_length: bool = False
    prefix_rows: int = 0
    positions: Positions = Positions.LEARNED
    embedding_norm: bool = True
    activation: Activation = Activation.GELU
    norm_eps: float = 1e-12
    pooling: Pooling = Pooling.MEAN
    normalize: bool = False

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, choices(value))
            except ValueError:
                raise ConfigError(f"{name} is {value!r}: choose one of {', '.join(choices)}") from None
        for name in ("d_model", "heads", "layers", "max_tokens"):
            _check_size(name, getattr(self, name))
        _check_size("prefix_rows", self.prefix_rows, least=0)
        for name in ("vocabulary_size", "feature_width", "embedding_width", "d_ff", "head_dim", "value_dim"):
            _check_size(name, getattr(self, name), least=0)
        if bool(self.vocabulary_size) == bool(self.feature_width):
            raise ConfigError(
                f"vocabulary_size is {self.vocabulary_size} and feature_width {self.feature_width}: set exactly one of "
                "them"
            )
        for field in fields(self):
            if field.type is bool and not isinstance(getattr(self, field.name), bool):
                raise ConfigError(f"{field.name} is {getattr(self, field.name)!r}: it must be true or false")
        if self.takes_tokens:
            object.__setattr__(self, "feature_projection", False)
        elif not self.feature_projection and self.feature_width != self.d_model:
            raise ConfigError(
                f"feature_projection is false, but feature_width is {self.feature_width} and d_model {self.d_model}: "
                "make the widths equal, or set feature_projection to true"
            )
        self._resolve_widths()
        if self.max_tokens < self.min_tokens:
            raise ConfigError(
                f"max_tokens is {self.max_tokens}: it must be {self.min_tokens} or more when mask is {self.mask}"
            )
        self._check_even_widths()
        if not isinstance(self.norm_eps, float) or not 0 < self.norm_eps < 1:
            raise ConfigError(f"norm_eps is {self.norm_eps!r}: it must be a number between 0 and 1")
        if self.normalize and self.pooling is Pooling.NONE:
            raise ConfigError("normalize is true with pooling 'none': choose a pooling, or set normalize to false")
        if self.prefix_rows and (self.takes_tokens or not self.learns_positions):
            raise ConfigError(
                f"prefix_rows is {self.prefix_rows}: set feature_width and learned positions, which hold the tokens of "
                "these rows, or set prefix_rows to 0"
            )
        if self.prefix_rows > self.max_tokens:
            raise ConfigError(f"prefix_rows is {self.prefix_rows}: it must be at most max_tokens, {self.max_tokens}")
        if self.pooling is Pooling.CLS and not self.takes_tokens and not self.learns_positions:
            raise ConfigError(
                f"pooling is cls, but features have no class token and positions are {self.positions.value!r}: choose "
                "another pooling, or learned positions, which can mark the first row as the class row"
            )

    def _resolve_widths(self) -> None:
        """Replace widths of 0 by their defaults, and check that all widths fit together."""
        if not self.embedding_width:
            object.__setattr__(self, "embedding_width", self.d_model)
        elif self.embedding_width != self.d_model and not self.takes_tokens:
            raise ConfigError(
                f"embedding_width is {self.embedding_width} and d_model {self.d_model}: make them equal for an encoder "
                "of features, which are mapped to d_model by feature_projection"
            )
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
        widths = (
            f"{self.heads} heads of value_dim {self.value_dim} have width {self.width}, and d_model is {self.d_model}"
        )
        if self.residual:
            raise ConfigError(f"residual is true, but {widths}: set residual to false, or output_projection to true")
        if self.layers > 1:
            raise ConfigError(f"layers is {self.layers}, but {widths}: set layers to 1, or output_projection to true")

    def _check_even_widths(self) -> None:
        """Check that pairs of a sine and a cosine fill the width of the positions."""
        embedding = "d_model" if self.embedding_width == self.d_model else "embedding_width"
        if self.positions is Positions.ROTARY_GRID and self.head_dim % 4:
            raise ConfigError(f"head_dim is {self.head_dim}: it must be a multiple of 4 when positions is rotary_grid")
        paired = {Positions.SINUSOIDAL: embedding, Positions.ROTARY: "head_dim"}.get(self.positions)
        if paired and getattr(self, paired) % 2:
            raise ConfigError(
                f"{paired} is {getattr(self, paired)}: it must be even when positions is {self.positions}"
            )

    @property
    def width(self) -> int:
        """Width of a layer's output: d_model, or without an output projection heads · value_dim."""
        return self.d_model if self.output_projection else self.heads * self.value_dim

    @property
    def min_tokens(self) -> int:
        """Fewest tokens of a sequence: 2 if a token cannot attend to itself, else 1."""
        return 2 if self.mask is Mask.SELF_EXCLUDING else 1

    @property
    def learns_positions(self) -> bool:
        """Whether the embeddings include a learned vector for each position."""
        return self.positions in (Positions.LEARNED, Positions.ROTARY_GRID)

    @property
    def takes_tokens(self) -> bool:
        """Whether sequences are token ids rather than features."""
        return self.vocabulary_size != 0

    @property
    def token_input(self) -> str:
        """Name of the graph input that holds the sequences."""
        return "input_ids" if self.takes_tokens else "features"

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "EncoderConfig":
        """Create a configuration from its fields, or raise ConfigError if a field is missing, unknown or wrong."""
        known = {each.name for each in fields(cls)}
        if unknown := sorted(values.keys() - known):
            raise ConfigError(f"unknown field {unknown[0]!r}: choose one of {', '.join(sorted(known))}")
        if missing := [each.name for each in fields(cls) if each.default is MISSING and each.name not in values]:
            raise ConfigError(f"field {missing[0]} is missing: set it")
        return cls(**values)


_CHOICES: dict[str, type[StrEnum]] = {
    "mask": Mask,
    "norm": Norm,
    "positions": Positions,
    "activation": Activation,
    "pooling": Pooling,
}


def _check_size(name: str, value: Any, least: int = 1) -> None:
    if type(value) is not int or not least <= value <= MAX_SIZE:
        raise ConfigError(f"{name} is {value!r}: it must be a whole number from {least} to {MAX_SIZE}")
