"""From token ids or features to the rows before the first layer.

Shapes: R rows, d = d_model.
"""

import torch
from torch import Tensor, nn

from headwaiter_export.config.choices import Positions
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.encoder.attention_layout import AttentionLayout
from headwaiter_export.encoder.norms import make_norm
from headwaiter_export.encoder.positions import LearnedPositions, NoPositions, SinusoidalPositions
from headwaiter_export.encoder.waveform import Waveform


class PositionedRows(nn.Module):
    """Adds positions to vectors of tokens, normalises the sums, and projects them to d_model.

    Args:
        config: configuration of the encoder.
        tables: modules that come before the positions, by their names.
    """

    def __init__(self, config: EncoderConfig, **tables: nn.Module | None) -> None:
        super().__init__()
        for name, table in tables.items():
            self.register_module(name, table)
        self.positions: nn.Module = NoPositions()
        if config.learns_positions:
            self.positions = LearnedPositions(config)
        elif config.positions is Positions.SINUSOIDAL:
            self.positions = SinusoidalPositions(config)
        self.norm = make_norm(config, config.embedding_width) if config.embedding_norm else nn.Identity()
        self.projection: nn.Module = nn.Identity()
        if config.embedding_width != config.d_model:
            self.projection = nn.Linear(config.embedding_width, config.d_model)

    def arrange(self, x: Tensor, layout: AttentionLayout, tokens: Tensor) -> Tensor:
        """Return rows [R, d] for the vectors [R, embedding_width] of tokens [R]."""
        rows: Tensor = self.projection(self.norm(self.positions(x, layout, tokens)))
        return rows


class Embedding(PositionedRows):
    """Turns token ids or features into rows, and adds positions."""

    tokens: nn.Module
    types: nn.Embedding | None

    def __init__(self, config: EncoderConfig) -> None:
        tokens: nn.Module = nn.Identity()
        if config.waveform:
            tokens = Waveform(config.waveform, config)
        elif config.takes_tokens:
            tokens = nn.Embedding(config.vocabulary_size, config.embedding_width)
        elif config.feature_projection:
            tokens = nn.Linear(config.feature_width, config.d_model)
        types = nn.Embedding(config.token_types, config.embedding_width) if config.token_types else None
        super().__init__(config, tokens=tokens, types=types)
        self._mask_id = config.mask_id

    def forward(self, tokens: Tensor, layout: AttentionLayout, token_types: Tensor | None = None) -> Tensor:
        """Return rows [R, d] for token ids [R], or for features [R, feature_width] of the same dtype as the weights."""
        x = self.tokens(tokens, layout) if isinstance(self.tokens, Waveform) else self.tokens(tokens)
        if self.types is not None:
            x = x + (self.types.weight[0] if token_types is None else self.types(token_types))
        if self._mask_id is not None:
            x = x * _mask_factors(tokens == self._mask_id, layout)[:, None].to(x.dtype)
        return self.arrange(x, layout, tokens)


def _mask_factors(masked: Tensor, layout: AttentionLayout) -> Tensor:
    """Return 0 for a masked row, and for any other row 1 / the share of other rows in its sequence, float32 [R].

    `masked` says which rows are masked, bool [R].
    """
    unmasked = (layout.pad(~masked[:, None])[..., 0] & layout.token_mask).sum(1)
    # A sequence of masked tokens alone has rows of zeros.
    factors = layout.lengths.float() / unmasked.clamp(min=1)
    return torch.where(masked, 0.0, factors.index_select(0, layout.sequence_numbers))
