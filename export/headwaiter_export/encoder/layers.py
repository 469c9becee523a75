"""The layers of encoders and decoders: attention and feed-forward blocks, with their norms and residual sums.

Shapes: R rows, d = d_model.
"""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from headwaiter_export.config.choices import Norm
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.encoder.activations import ACTIVATIONS
from headwaiter_export.encoder.attention import Attention, CrossAttention, SelfAttention
from headwaiter_export.encoder.attention_layout import AttentionLayout
from headwaiter_export.encoder.convolution import Convolution
from headwaiter_export.encoder.experts import ExpertFeedForward
from headwaiter_export.encoder.norms import make_norm


class AttentionLayer(nn.Module):
    """Attention with its norm and residual sum, in the order that `norm` of EncoderConfig defines.

    Layers are numbered from 0. A layer with `CrossAttention` also takes the last rows of the encoder.
    """

    def __init__(self, config: EncoderConfig, number: int, attention: type[Attention] = SelfAttention) -> None:
        super().__init__()
        self.post_norm = config.norm is Norm.POST
        self.residual = config.residual
        self.attention = attention(config, number)
        self.attention_norm: nn.Module = nn.Identity()
        if config.norm is not Norm.NONE and (number > 0 or config.first_norm):
            self.attention_norm = make_norm(config, config.width if self.post_norm else config.d_model)
        self.attention_end_norm = _end_norm(config)

    def forward(self, x: Tensor, layout: AttentionLayout, *source: Tensor) -> Tensor:
        """Transform rows [R, d] to [R, width]."""
        return self._transform(
            x, lambda rows: self.attention(rows, layout, *source), self.attention_norm, self.attention_end_norm
        )

    def _transform(
        self,
        x: Tensor,
        block: Callable[[Tensor], Tensor],
        norm: nn.Module,
        end_norm: nn.Module,
    ) -> Tensor:
        if not self.post_norm:
            y: Tensor = end_norm(block(norm(x)))
            return x + y if self.residual else y
        y = block(x)
        normalized: Tensor = norm(y + x if self.residual else y)
        return normalized


class EncoderLayer(AttentionLayer):
    """Attention, then the feed-forward block; both have a norm and a residual sum.

    In the first layer, a convolution of the layer's input may follow.
    """

    def __init__(self, config: EncoderConfig, number: int, attention: type[Attention] = SelfAttention) -> None:
        super().__init__(config, number, attention)
        self.convolution = Convolution(config) if config.convolution_kernel and number == 0 else None
        experts = config.feed_forward_experts
        has_experts = experts is not None and number in experts.layers
        self.feed_forward = ExpertFeedForward(config) if has_experts else FeedForward(config)
        self.feed_forward_norm = nn.Identity() if config.norm is Norm.NONE else make_norm(config, config.width)
        self.feed_forward_end_norm = _end_norm(config)

    def forward(self, x: Tensor, layout: AttentionLayout, *source: Tensor) -> Tensor:
        """Transform rows [R, d] to [R, width]."""
        y = self._feed_forward(super().forward(x, layout, *source))
        if self.convolution is not None:
            y = self.convolution(x, y, layout)
        return y

    def _feed_forward(self, x: Tensor) -> Tensor:
        return self._transform(x, self.feed_forward, self.feed_forward_norm, self.feed_forward_end_norm)


class DecoderLayer(EncoderLayer):
    """Attention to the rows before, attention to the rows of the encoder, then the feed-forward block."""

    def __init__(self, config: EncoderConfig, number: int) -> None:
        super().__init__(config, number)
        self.cross_attention = CrossAttention(config, number)
        self.cross_attention_norm = nn.Identity() if config.norm is Norm.NONE else make_norm(config, config.d_model)
        self.cross_attention_end_norm = _end_norm(config)

    def forward(self, x: Tensor, layout: AttentionLayout, source: Tensor) -> Tensor:  # type: ignore[override]
        """Transform rows [R, d] of the decoder, given the last rows [R, d] of the encoder."""
        x = AttentionLayer.forward(self, x, layout)
        attend = partial(self.cross_attention, layout=layout, source=source)
        x = self._transform(x, attend, self.cross_attention_norm, self.cross_attention_end_norm)
        return self._feed_forward(x)


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
