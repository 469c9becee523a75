"""A decoder over an encoder's rows, computed in one pass: see `DecoderConfig`.

Shapes: R rows, d = d_model.
"""

import torch
from torch import Tensor, nn

from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.encoder.attention_layout import AttentionLayout
from headwaiter_export.encoder.embedding import PositionedRows
from headwaiter_export.encoder.layers import DecoderLayer
from headwaiter_export.encoder.norms import make_norm


class Decoder(nn.Module):
    """Positions, layers and the final norm of a decoder; the table of tokens is that of the encoder."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        assert config.decoder is not None
        self._start_id = config.decoder.start_id
        stack = config.decoder_stack
        self.embedding = PositionedRows(stack)
        self.layers = nn.ModuleList(DecoderLayer(stack, number) for number in range(stack.layers))
        self.norm = make_norm(stack, stack.d_model) if stack.final_norm else nn.Identity()

    def embed(self, table: nn.Module, tokens: Tensor, layout: AttentionLayout) -> Tensor:
        """Return the rows [R, d] before the first layer for token ids [R], each of which moves to the next row."""
        # In a batch, the token before a first row is that of another sequence: the start token replaces it.
        before = torch.cat((tokens[:1], tokens[:-1]))
        moved = torch.where(layout.positions == 0, self._start_id, before)
        return self.embedding.arrange(table(moved), layout, moved)

    def forward(self, table: nn.Module, tokens: Tensor, source: Tensor, layout: AttentionLayout) -> Tensor:
        """Return the decoder's rows [R, d] for token ids [R] and the encoder's rows [R, d]."""
        x = self.embed(table, tokens, layout)
        for layer in self.layers:
            x = layer(x, layout, source)
        normalized: Tensor = self.norm(x)
        return normalized
