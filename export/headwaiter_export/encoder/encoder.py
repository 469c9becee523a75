"""The encoder in PyTorch, from token ids or features to pooled vectors.

The same modules compute the reference results and are traced into every graph; an attention layout tells them which
rows form a sequence. Shapes: R rows (one for each token or grid cell, as the layout arranges them), B sequences, N
tokens of the longest sequence, d = d_model. Rows of the last layer have `EncoderConfig.width`, which is mostly d.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from headwaiter_export.config.choices import Norm, Pooling, Positions
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.config.field_checks import ConfigError, WeightsError
from headwaiter_export.encoder.activations import ACTIVATIONS
from headwaiter_export.encoder.after_pooling import build_modules, merge_dense
from headwaiter_export.encoder.attention import LearnedTemperature, SelfAttention
from headwaiter_export.encoder.attention_layout import AttentionLayout
from headwaiter_export.encoder.head import Head
from headwaiter_export.encoder.norms import make_norm
from headwaiter_export.encoder.pooling import pool
from headwaiter_export.encoder.positions import LearnedPositions, NoPositions, SinusoidalPositions

_POSITIONS = "embedding.positions.table.weight"


class Encoder(nn.Module):
    """A self-attention encoder: embedding, layers, pooling."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(config)
        layer = EncoderLayer if config.d_ff else AttentionLayer
        self.layers = nn.ModuleList(layer(config, number) for number in range(config.layers))
        self.norm = make_norm(config, config.width) if config.final_norm else nn.Identity()
        self.after_pooling = build_modules(config)
        self.head = Head(config.head, config) if config.head else None

    @classmethod
    def with_weights(cls, config: EncoderConfig, weights: Mapping[str, Tensor]) -> "Encoder":
        """Build an encoder from weights named as in `state_dict`, without copying them.

        Learned positions beyond max_tokens are dropped.

        Raises:
            ConfigError: max_tokens exceeds the number of learned positions.
            WeightsError: a tensor is missing, unknown, of the wrong shape or not finite; the message names the tensor.
        """
        with torch.device("meta"):
            encoder = cls(config)
        encoder.load_state_dict(_fitted_weights(weights, encoder.state_dict()), assign=True)
        return encoder.eval()

    @torch.no_grad()
    def fold_temperatures(self) -> "Encoder":
        """Return an encoder of equal results, with learned temperatures multiplied into the query weights."""
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

    @torch.no_grad()
    def merge_dense(self) -> "Encoder":
        """Return an encoder of equal results, with consecutive Dense modules merged where that saves weights."""
        modules, weights = merge_dense(self.config, self.state_dict())
        if modules == self.config.after_pooling:
            return self
        return Encoder.with_weights(replace(self.config, after_pooling=modules), weights)

    def forward(
        self, tokens: Tensor, layout: AttentionLayout, token_types: Tensor | None = None
    ) -> tuple[Tensor | None, Tensor]:
        """Encode token ids [R], with their token types [R] (None for type 0), or features [R, feature_width].

        Returns:
            Pooled vectors before normalization, float32 [B, pooled_width] (None without pooling), and hidden rows
            [R, width].
        """
        if not self.config.takes_tokens:
            # Features are float32 whatever the precision of the weights.
            tokens = tokens.to(next(self.parameters()).dtype)
        x = self.embedding(tokens, layout, token_types)
        for layer in self.layers:
            x = layer(x, layout)
        x = self.norm(x)
        pooled = pool(x, layout, self.config.pooling)
        return None if pooled is None else self.after_pooling(pooled), x

    def logits(self, x: Tensor, layout: AttentionLayout) -> Tensor | None:
        """Return the logits of hidden rows [R, width], float32 [B, labels] or [R, labels]; None without a head."""
        head = self.config.head
        if head is None or self.head is None:
            return None
        pooled = None if head.per_token or head.pooling is Pooling.CLS else pool(x, layout, head.pooling)
        logits: Tensor = self.head(x, layout, pooled)
        return logits


class Embedding(nn.Module):
    """Turns token ids or features into rows, and adds positions."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.tokens: nn.Module
        if config.takes_tokens:
            self.tokens = nn.Embedding(config.vocabulary_size, config.embedding_width)
        else:
            self.tokens = (
                nn.Linear(config.feature_width, config.d_model) if config.feature_projection else nn.Identity()
            )
        self.types = nn.Embedding(config.token_types, config.embedding_width) if config.token_types else None
        self.positions: nn.Module = NoPositions()
        if config.learns_positions:
            self.positions = LearnedPositions(config)
        elif config.positions is Positions.SINUSOIDAL:
            self.positions = SinusoidalPositions(config)
        self.norm = make_norm(config, config.embedding_width) if config.embedding_norm else nn.Identity()
        self.projection: nn.Module = nn.Identity()
        if config.embedding_width != config.d_model:
            self.projection = nn.Linear(config.embedding_width, config.d_model)

    def forward(self, tokens: Tensor, layout: AttentionLayout, token_types: Tensor | None = None) -> Tensor:
        """Return rows [R, d] for token ids [R], or for features [R, feature_width] of the same dtype as the weights."""
        x = self.tokens(tokens)
        if self.types is not None:
            x = x + (self.types.weight[0] if token_types is None else self.types(token_types))
        embedded: Tensor = self.projection(self.norm(self.positions(x, layout, tokens)))
        return embedded


class AttentionLayer(nn.Module):
    """Attention with its norm and residual sum, in the order that `norm` of EncoderConfig defines.

    Layers are numbered from 0.
    """

    def __init__(self, config: EncoderConfig, number: int) -> None:
        super().__init__()
        self.post_norm = config.norm is Norm.POST
        self.residual = config.residual
        self.attention = SelfAttention(config, number)
        self.attention_norm: nn.Module = nn.Identity()
        if config.norm is not Norm.NONE and (number > 0 or config.first_norm):
            self.attention_norm = make_norm(config, config.width if self.post_norm else config.d_model)
        self.attention_end_norm = _end_norm(config)

    def forward(self, x: Tensor, layout: AttentionLayout) -> Tensor:
        """Transform rows [R, d] to [R, width]."""
        return self._transform(
            x, partial(self.attention, layout=layout), self.attention_norm, self.attention_end_norm, layout
        )

    def _transform(
        self,
        x: Tensor,
        block: Callable[[Tensor], Tensor],
        norm: nn.Module,
        end_norm: nn.Module,
        layout: AttentionLayout,
    ) -> Tensor:
        if not self.post_norm:
            y: Tensor = end_norm(block(norm(x)))
            return x + y if self.residual else y
        y = block(x)
        normalized: Tensor = layout.add_and_normalize(y, x, norm) if self.residual else norm(y)
        return normalized


class EncoderLayer(AttentionLayer):
    """Attention, then the feed-forward block; both have a norm and a residual sum."""

    def __init__(self, config: EncoderConfig, number: int) -> None:
        super().__init__(config, number)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = nn.Identity() if config.norm is Norm.NONE else make_norm(config, config.width)
        self.feed_forward_end_norm = _end_norm(config)

    def forward(self, x: Tensor, layout: AttentionLayout) -> Tensor:
        """Transform rows [R, d] to [R, width]."""
        x = super().forward(x, layout)
        return self._transform(x, self.feed_forward, self.feed_forward_norm, self.feed_forward_end_norm, layout)


def _end_norm(config: EncoderConfig) -> nn.Module:
    """Return the norm after a block, before the residual sum."""
    return make_norm(config, config.width) if config.norm is Norm.SANDWICH else nn.Identity()


class FeedForward(nn.Module):
    """Two linear layers with an activation between them, which a third layer may gate."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[config.activation]
        self.gate = nn.Linear(config.width, config.d_ff, config.up_bias) if config.gated else None
        self.up = nn.Linear(config.width, config.d_ff, config.up_bias)
        self.down = nn.Linear(config.d_ff, config.width, config.down_bias)

    def forward(self, x: Tensor) -> Tensor:
        """Transform each row of [R, width]."""
        # Two products instead of one of twice the width, whose halves would be copied.
        inner = self.activation(self.up(x)) if self.gate is None else self.activation(self.gate(x)) * self.up(x)
        transformed: Tensor = self.down(inner)
        return transformed


def _fitted_weights(weights: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Cut the learned positions that no sequence needs, and check the names, shapes and values of all weights."""
    fitted = dict(weights)
    if _POSITIONS in expected and _POSITIONS in weights:
        needed, found = len(expected[_POSITIONS]), len(weights[_POSITIONS])
        if found < needed:
            raise ConfigError(
                f"the configuration needs {needed} learned positions, but the weights have only {found}: reduce "
                "max_tokens"
            )
        fitted[_POSITIONS] = weights[_POSITIONS][:needed]
    unknown = sorted(fitted.keys() - expected.keys())
    if missing := [f"{name} {[*tensor.shape]}" for name, tensor in expected.items() if name not in fitted]:
        also = f", and have an unknown tensor {unknown[0]}" if unknown else ""
        raise WeightsError(
            f"the weights lack {', '.join(missing)}{also}: add the missing tensors, or change the configuration"
        )
    for name, tensor in expected.items():
        if fitted[name].shape != tensor.shape:
            raise WeightsError(
                f"tensor {name} has shape {[*fitted[name].shape]}, but the configuration requires {[*tensor.shape]}: "
                "change the tensor or the configuration"
            )
        if not fitted[name].isfinite().all():
            raise WeightsError(f"tensor {name} contains NaN or infinity: all weights must be finite")
    if unknown:
        raise WeightsError(
            f"tensor {unknown[0]} is not part of the configured encoder: remove it, or change the configuration"
        )
    return fitted
