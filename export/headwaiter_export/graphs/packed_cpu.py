"""The attention layout of the packed graphs for CPUs."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from headwaiter_export.config.choices import Mask
from headwaiter_export.encoder.attention import attention, head_indices, split_heads
from headwaiter_export.encoder.score_terms import ScoreTerms
from headwaiter_export.graphs.fusions import begin_block, end_block, loop_over_blocks
from headwaiter_export.graphs.graph_layout import Axes, Fusions, Packed


class PackedCpu(Packed):
    """The packed layout for CPUs: gathered attention in standard operators, computed for one query block at a time.

    The server cuts the queries of a batch into blocks, so that the scores of one block have bounded memory whatever the
    length of a sequence. An ordinary batch is one block. The loop over the blocks (ONNX's Scan) takes about 20 µs in
    each layer. ONNX Runtime's operator MultiHeadAttention is not used: with it, a batch of 512 tokens takes 2 to 3 %
    longer.
    """

    FUSIONS: ClassVar[Fusions] = (loop_over_blocks,)
    INPUT_AXES: ClassVar[Axes] = {
        "positions": ("tokens",),
        "lengths": ("batch",),
        "gather": ("batch", "sequence"),
        "query_blocks": ("blocks", "batch", "block"),
        "block_scatter": ("tokens",),
    }

    @override
    def attend_in_cells(
        self, query: Tensor, key: Tensor, value: Tensor, heads: int, terms: ScoreTerms, keys: Packed
    ) -> Tensor:
        gather, blocks = keys.inputs["gather"], self.inputs["query_blocks"]
        near = None if terms.window is None else self._near_positions(terms)
        indices = head_indices(gather if near is None else gather.index_select(1, near), heads)
        k, v = (F.embedding(indices, split_heads(rows, heads)) for rows in (key, value))
        q = F.embedding(begin_block(head_indices(blocks, heads)), split_heads(query, heads))
        positions = bias = None
        if not terms.are_zero:
            positions = self._block_positions()
        if terms.have_bias and positions is not None:
            # Queries in a column have the same position, except those that repeat the last row of a sequence.
            bias = terms.bias(q, k, positions.amax(0), near, self._key_blocks(key, heads, terms))
        key_mask = keys.key_mask if near is None else near < self.key_lengths[:, None]
        _, context = attention(q, k, v, terms.mask(key_mask, positions, near), bias, terms.cap)
        contexts = end_block(context.transpose(1, 2), blocks.shape[0])
        return contexts.flatten(3).flatten(0, 2).index_select(0, self.inputs["block_scatter"])

    def _key_blocks(self, key: Tensor, heads: int, terms: ScoreTerms) -> Tensor | None:
        """Return all keys in the blocks of the queries, [B, blocks, H, n, head_dim]; None if no term needs blocks."""
        if terms.distance_queries is None or terms.window is not None:
            return None
        indices = head_indices(self.inputs["query_blocks"].transpose(0, 1), heads)
        return F.embedding(indices, split_heads(key, heads))

    def _block_positions(self) -> Tensor:
        """Return the position of each query of a block in its sequence, [B, n]."""
        # The first cell of a sequence has its first row, so the difference is the position.
        return begin_block(self.inputs["query_blocks"] - self.inputs["gather"][:, :1])

    def _near_positions(self, terms: ScoreTerms) -> Tensor:
        """Return the positions of the keys that the queries of a block attend to in a window, [K].

        All blocks have K keys: those before the first query, those of the block, and those after the last query. If the
        sequences are shorter, K is N. At the ends of the longest sequence, K keys inside it are taken.
        """
        assert terms.window is not None
        longest, block = self.inputs["gather"].shape[1], self.inputs["query_blocks"].shape[2]
        after = 0 if terms.pattern is Mask.CAUSAL else terms.window
        keys = torch.sym_min(longest, terms.window + block + after)  # type: ignore[no-untyped-call]
        first_query = self._block_positions().amax(0)[0]
        return (first_query - terms.window).clamp(min=0).minimum(torch.tensor(longest - keys)) + torch.arange(keys)
