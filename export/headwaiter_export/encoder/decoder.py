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
    """Positions, layers and the final norm of a decoder; the vectors of tokens are those of the encoder."""

    def __init__(self, encoder: EncoderConfig) -> None:
        super().__init__()
        assert encoder.decoder is not None
        self._start_id = encoder.decoder.start_id
        config = encoder.decoder_layers
        self.embedding = PositionedRows(config)
        self.layers = nn.ModuleList(DecoderLayer(config, number) for number in range(config.layers))
        self.norm = make_norm(config, config.d_model) if config.final_norm else nn.Identity()

    def embed(self, vectors: nn.Module, tokens: Tensor, layout: AttentionLayout) -> Tensor:
        """Return the rows [R, d] before the first layer for token ids [R], each of which moves to the next row."""
        # In a batch, the token before a first row is that of another sequence: the start token replaces it.
        before = torch.cat((tokens[:1], tokens[:-1]))
        moved = torch.where(layout.positions == 0, self._start_id, before)
        return self.embedding.arrange(vectors(moved), layout, moved)

    def forward(self, vectors: nn.Module, tokens: Tensor, source: Tensor, layout: AttentionLayout) -> Tensor:
        """Return the decoder's rows [R, d] for token ids [R] and the encoder's rows [R, d]."""
        x = self.embed(vectors, tokens, layout)
        for layer in self.layers:
            x = layer(x, layout, source)
        normalized: Tensor = self.norm(x)
        return normalized
