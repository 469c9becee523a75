"""Encode many sequences in PyTorch, in the packed batches of the graphs."""

import itertools

import numpy as np
import torch
from torch import Tensor, nn

from headwaiter_export.attention_layout import Packed
from headwaiter_export.config import EncoderConfig
from headwaiter_export.encoder import Encoder
from headwaiter_export.parity import Sequence, concatenate, normalize_outputs
from headwaiter_server.runtime.graph import Outputs
from headwaiter_server.runtime.packing import pack

_BATCH_TOKENS = 512


class PackedBatches:
    """Sequences in packed batches, which PyTorch encodes faster than one sequence after the other.

    Attributes:
        config: the configuration of the encoder.
        sequences: the sequences of each batch; longer sequences are in later batches.
        layouts: the attention layout of each batch.
        inputs: token ids, perhaps with token types, or features of each batch.
    """

    def __init__(self, config: EncoderConfig, sequences: list[Sequence]) -> None:
        self.config = config
        self.sequences = _batches_by_length(sequences)
        self.layouts, self.inputs = list[Packed](), list[list[Tensor]]()
        axes = {**dict.fromkeys(config.row_inputs, Packed.TOKEN_AXES), **Packed.INPUT_AXES}
        for batch in self.sequences:
            feeds = {name: torch.from_numpy(array) for name, array in pack(batch).feeds(axes).items()}
            self.inputs.append([feeds.pop(name) for name in config.row_inputs])
            self.layouts.append(Packed(feeds))

    def embed(self, encoder: Encoder) -> list[Tensor]:
        """Return the rows of each batch before the first block."""
        pairs = zip(self.inputs, self.layouts, strict=True)
        return [encoder.embedding(tokens, layout, *types) for (tokens, *types), layout in pairs]

    def run(self, layer: nn.Module, rows: list[Tensor]) -> list[Tensor]:
        """Return the rows of each batch after a block, given those before it."""
        return [layer(x, layout) for x, layout in zip(rows, self.layouts, strict=True)]

    @torch.no_grad()
    def outputs(self, encoder: Encoder) -> Outputs:
        """Return the outputs of an encoder for all batches."""
        outputs = []
        for (tokens, *types), layout in zip(self.inputs, self.layouts, strict=True):
            pooled, hidden = encoder(tokens, layout, *types)
            logits = encoder.logits(hidden, layout)
            outputs.append(
                Outputs(
                    None if pooled is None else pooled.numpy(),
                    hidden.numpy(),
                    None if logits is None else [logits.numpy()],
                )
            )
        return normalize_outputs(self.config, concatenate(outputs))


def _batches_by_length(sequences: list[Sequence]) -> list[list[Sequence]]:
    """Return the sequences, sorted by length, in batches of about 512 tokens."""
    ordered = sorted(sequences, key=len)
    ends = np.cumsum([len(sequence) for sequence in ordered])
    cuts = [0, *np.flatnonzero(np.diff(ends // _BATCH_TOKENS)) + 1, len(ordered)]
    return [ordered[a:b] for a, b in itertools.pairwise(cuts)]
