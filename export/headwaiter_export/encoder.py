"""The encoder, from tokens to pooled vectors.

Shapes: R rows (the tokens, in the lowering's layout), d = d_model, B sequences, N tokens of the longest. The last
layer's rows are as wide as the configuration's `width`, which is d in most encoders.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headwaiter_export.attention import LearnedTemperature, SelfAttention
from headwaiter_export.attention_layout import Lowering
from headwaiter_export.config import (
    Activation,
    ConfigError,
    EncoderConfig,
    Norm,
    Pooling,
    Positions,
    WeightsError,
)
from headwaiter_export.positions import LearnedPositions, NoPositions, SinusoidalPositions


class Encoder(nn.Module):
    """Embedding, layers, pooling."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(config)
        layer = EncoderLayer if config.d_ff else AttentionLayer
        self.layers = nn.ModuleList(layer(config) for _ in range(config.layers))
        self.norm = _layer_norm(config, config.width) if config.final_norm else nn.Identity()

    @classmethod
    def with_weights(cls, config: EncoderConfig, weights: Mapping[str, Tensor]) -> "Encoder":
        """Build an encoder around weights, named as in `state_dict`; they are not copied.

        Learned positions from max_tokens on are left aside.

        Raises:
            ConfigError: max_tokens is more than there are learned positions.
            WeightsError: naming a tensor that is missing, has no place, is of another shape or not finite.
        """
        with torch.device("meta"):
            encoder = cls(config)
        encoder.load_state_dict(_fit(weights, encoder.state_dict()), assign=True)
        return encoder.eval()

    @torch.no_grad()
    def folded(self) -> "Encoder":
        """Return the encoder as it is exported: learned temperatures are in the weights of the queries."""
        if not self.config.learned_temperature:
            return self
        weights = self.state_dict()
        for name, module in self.named_modules():
            if isinstance(module, LearnedTemperature):
                del weights[f"{name}.temperature"]
                query = f"{name.removesuffix('temperature')}query"
                weights[f"{query}.weight"] = weights[f"{query}.weight"] * module.factors[:, None]
                if self.config.query_bias:
                    weights[f"{query}.bias"] = weights[f"{query}.bias"] * module.factors
        return Encoder.with_weights(replace(self.config, learned_temperature=False), weights)

    def forward(self, tokens: Tensor, lowering: Lowering) -> tuple[Tensor | None, Tensor]:
        """Encode token ids [R] or features [R, feature_width].

        Returns:
            Pooled vectors, float32 [B, width], not scaled to unit length (None without pooling), and hidden rows
            [R, width].
        """
        if not self.config.takes_tokens:
            # Features come in float32 whatever the model's own precision is.
            tokens = tokens.to(next(self.parameters()).dtype)
        x = self.embedding(tokens, lowering)
        for layer in self.layers:
            x = layer(x, lowering)
        x = self.norm(x)
        return pool(x, lowering, self.config.pooling), x


class Embedding(nn.Module):
    """Rows from token ids or features, with their positions."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.tokens: nn.Module
        if config.takes_tokens:
            self.tokens = nn.Embedding(config.vocabulary_size, config.d_model)
        else:
            self.tokens = (
                nn.Linear(config.feature_width, config.d_model) if config.feature_projection else nn.Identity()
            )
        kinds = {Positions.LEARNED: LearnedPositions, Positions.SINUSOIDAL: SinusoidalPositions}
        self.positions = kinds[config.positions](config) if config.positions in kinds else NoPositions()
        self.norm = _layer_norm(config, config.d_model) if config.embedding_norm else nn.Identity()

    def forward(self, tokens: Tensor, lowering: Lowering) -> Tensor:
        """Embed token ids [R] or features [R, feature_width], in the model's precision, as [R, d]."""
        embedded: Tensor = self.norm(self.positions(self.tokens(tokens), lowering))
        return embedded


class AttentionLayer(nn.Module):
    """Attention, with its norm and its residual sum as the configuration has them.

    Post-norm is LayerNorm(x + block(x)), as in https://arxiv.org/abs/1706.03762, section 3.1; pre-norm is
    x + block(LayerNorm(x)), as in https://arxiv.org/abs/2002.04745. Without a residual there is nothing to add.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.post_norm = config.norm is Norm.POST
        self.residual = config.residual
        self.attention = SelfAttention(config)
        self.attention_norm = _block_norm(config, config.width if self.post_norm else config.d_model)

    def forward(self, x: Tensor, lowering: Lowering) -> Tensor:
        """Transform rows [R, d] to [R, width]."""
        return self._transform(x, partial(self.attention, lowering=lowering), self.attention_norm, lowering)

    def _transform(self, x: Tensor, block: Callable[[Tensor], Tensor], norm: nn.Module, lowering: Lowering) -> Tensor:
        if not self.post_norm:
            y = block(norm(x))
            return x + y if self.residual else y
        y = block(x)
        normalized: Tensor = lowering.add_and_normalize(y, x, norm) if self.residual else norm(y)
        return normalized


class EncoderLayer(AttentionLayer):
    """Attention and feed-forward, each with a norm and a residual sum of the same kind."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = _block_norm(config, config.width)

    def forward(self, x: Tensor, lowering: Lowering) -> Tensor:
        """Transform rows [R, d] to [R, width]."""
        x = super().forward(x, lowering)
        return self._transform(x, self.feed_forward, self.feed_forward_norm, lowering)


class FeedForward(nn.Module):
    """Two linear layers with an activation between them."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.activation = _ACTIVATIONS[config.activation]
        self.up = nn.Linear(config.width, config.d_ff)
        self.down = nn.Linear(config.d_ff, config.width)

    def forward(self, x: Tensor) -> Tensor:
        """Transform rows [R, width] one by one."""
        transformed: Tensor = self.down(self.activation(self.up(x)))
        return transformed


def _fit(weights: Mapping[str, Tensor], places: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weights that have the names and shapes of their places, learned positions cut to as many as needed."""
    fitted = dict(weights)
    if _POSITIONS in places and _POSITIONS in weights:
        needed, held = len(places[_POSITIONS]), len(weights[_POSITIONS])
        if held < needed:
            raise ConfigError(
                f"max_tokens is {needed}, but the weights hold {held} learned positions: set it to {held} or less"
            )
        fitted[_POSITIONS] = weights[_POSITIONS][:needed]
    unknown = sorted(fitted.keys() - places.keys())
    if lacking := [f"{name} {[*place.shape]}" for name, place in places.items() if name not in fitted]:
        strange = f"; they have {unknown[0]}, which it has no place for" if unknown else ""
        raise WeightsError(f"the weights lack what the configuration needs: {', '.join(lacking)}{strange}")
    for name, place in places.items():
        if fitted[name].shape != place.shape:
            raise WeightsError(
                f"{name} has the shape {[*fitted[name].shape]}: by the configuration it must have {[*place.shape]}"
            )
        if not fitted[name].isfinite().all():
            raise WeightsError(f"{name} has a NaN or an infinity: weights must be finite")
    if unknown:
        raise WeightsError(
            f"the configuration has no place for {unknown[0]}: leave it out of the weights, or change the configuration"
        )
    return fitted


def _layer_norm(config: EncoderConfig, width: int) -> nn.LayerNorm:
    return nn.LayerNorm(width, config.norm_eps)


def _block_norm(config: EncoderConfig, width: int) -> nn.Module:
    return nn.Identity() if config.norm is Norm.NONE else _layer_norm(config, width)


def pool(x: Tensor, lowering: Lowering, pooling: Pooling) -> Tensor | None:
    """Pool hidden rows [R, width] to float32 [B, width]; None when the encoder does not pool."""
    if pooling is Pooling.NONE:
        return None
    return _POOLINGS[pooling](lowering.cells(x).float(), lowering)


def _mean(cells: Tensor, lowering: Lowering) -> Tensor:
    # Masked by choice, not by a product: zero times what stands in a padding cell may be NaN.
    return torch.where(lowering.mask[..., None], cells, 0.0).sum(1) / lowering.lengths[:, None]


def _max(cells: Tensor, lowering: Lowering) -> Tensor:
    return torch.where(lowering.mask[..., None], cells, -torch.inf).amax(1)


def _cls(cells: Tensor, _: Lowering) -> Tensor:
    return cells[:, 0]


def _last(cells: Tensor, lowering: Lowering) -> Tensor:
    last = (lowering.lengths.long() - 1)[:, None, None].expand(-1, 1, cells.shape[2])
    return cells.gather(1, last)[:, 0]


_POOLINGS: dict[Pooling, Callable[[Tensor, Lowering], Tensor]] = {
    Pooling.MEAN: _mean,
    Pooling.MAX: _max,
    Pooling.CLS: _cls,
    Pooling.LAST: _last,
}
_POSITIONS = "embedding.positions.table.weight"
_ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    Activation.GELU: F.gelu,
    Activation.GELU_TANH: partial(F.gelu, approximate="tanh"),
    Activation.RELU: F.relu,
    Activation.SILU: F.silu,
}
