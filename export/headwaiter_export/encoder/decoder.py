"""A decoder over an encoder's rows, computed in one pass: see `DecoderConfig`.

Shapes: R rows, B sequences, d = d_model.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from typing_extensions import override

from headwaiter_export.config.choices import DecoderInput
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.encoder.attention import CrossAttention, attention
from headwaiter_export.encoder.attention_layout import AttentionLayout
from headwaiter_export.encoder.embedding import PositionedRows
from headwaiter_export.encoder.layers import AttentionLayer, DecoderLayer, EncoderLayer
from headwaiter_export.encoder.norms import make_norm
from headwaiter_export.encoder.score_terms import ScoreTerms


class Decoder(nn.Module):
    """Positions, layers and the final norm of a decoder; the table of tokens is that of the encoder."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        assert config.decoder is not None
        self._start_id = config.decoder.start_id
        self._input = config.decoder.input
        stack = config.decoder_stack
        self.embedding = PositionedRows(stack)
        layer: Callable[[EncoderConfig, int], nn.Module] = DecoderLayer
        if not config.decoder.self_attention:
            layer = partial(EncoderLayer if stack.d_ff else AttentionLayer, attention=CrossAttention)
        self.layers = nn.ModuleList(layer(stack, number) for number in range(stack.layers))
        self.norm = make_norm(stack, stack.d_model) if stack.final_norm else nn.Identity()

    def layout(self, layout: AttentionLayout) -> AttentionLayout:
        """Return the layout of the decoder's rows, given that of the encoder's rows."""
        if self._input is DecoderInput.TARGET:
            return layout.target
        return layout if self._input is DecoderInput.TEXT else OneRowEach(layout)

    def embed(self, table: nn.Module, tokens: Tensor | None, layout: AttentionLayout) -> Tensor:
        """Return the rows before the first layer, in the layout of the decoder.

        Args:
            table: the vectors of the vocabulary, or the projection of features.
            tokens: the token ids or features of the targets; or token ids [R], each of which moves to the next row; or
                None for the rows of the start token alone.
            layout: the decoder's layout.
        """
        if self._input is DecoderInput.TARGET and tokens is not None:
            return self.embedding.arrange(table(tokens), layout, tokens)
        assert self._start_id is not None
        if tokens is None:
            moved = torch.full_like(layout.positions, self._start_id)
        else:
            # In a batch, the token before a first row is that of another sequence: the start token replaces it.
            before = torch.cat((tokens[:1], tokens[:-1]))
            moved = torch.where(layout.positions == 0, self._start_id, before)
        return self.embedding.arrange(table(moved), layout, moved)

    def forward(self, table: nn.Module, tokens: Tensor | None, source: Tensor, layout: AttentionLayout) -> Tensor:
        """Return the decoder's rows: [R, d], or [B, d] for the rows of the start token alone.

        Args:
            table: as in `embed`.
            tokens: as in `embed`.
            source: the encoder's rows [R, d].
            layout: the encoder's layout.
        """
        layout = self.layout(layout)
        x = self.embed(table, tokens, layout)
        for layer in self.layers:
            x = layer(x, layout, source)
        normalized: Tensor = self.norm(x)
        return normalized


class OneRowEach(AttentionLayout):
    """The first row of a decoder for each sequence of the encoder's layout: R = B, N = 1."""

    def __init__(self, source: AttentionLayout) -> None:
        self._encoder_rows = source

    @property
    @override
    def positions(self) -> Tensor:
        return torch.zeros_like(self._encoder_rows.lengths, dtype=torch.int64)

    @property
    @override
    def token_mask(self) -> Tensor:
        return torch.ones_like(self._encoder_rows.lengths, dtype=torch.bool)[:, None]

    @override
    def attend(self, query: Tensor, key: Tensor, value: Tensor, heads: int, terms: ScoreTerms) -> Tensor:
        # The weight of the only row is 1.
        return value

    @override
    def attend_to_source(self, query: Tensor, key: Tensor, value: Tensor, heads: int, terms: ScoreTerms) -> Tensor:
        k, v = (_heads_of_cells(self._encoder_rows.pad(rows), heads) for rows in (key, value))
        _, context = attention(_heads_of_cells(self.pad(query), heads), k, v, terms.mask(self._encoder_rows.token_mask))
        return context.flatten(1)

    @override
    def pad(self, rows: Tensor) -> Tensor:
        return rows[:, None]


def _heads_of_cells(cells: Tensor, heads: int) -> Tensor:
    """Arrange cells [B, N, H·n] as [B, H, N, n]."""
    return cells.view(*cells.shape[:2], heads, cells.shape[2] // heads).transpose(1, 2)
