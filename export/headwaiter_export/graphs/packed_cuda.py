"""The packed layout for CUDA, written with ONNX Runtime's own operators where they are faster.

`PackedCuda` is the layout of the graphs that a server runs on a GPU. Its operators belong to the domain com.microsoft,
so only ONNX Runtime can run these graphs. Shapes are those of `encoder/attention_layout.py`.
"""

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from headwaiter_export.config.choices import Mask, Positions
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.encoder.score_terms import MASKED_SCORE, ScoreTerms
from headwaiter_export.graphs.fusions import defer_biases, fuse_norms, merge_projections
from headwaiter_export.graphs.graph_layout import Axes, Fusions, Packed
from headwaiter_server.runtime.attention_routes import is_always_fused, padded_attention

# RotaryEmbedding has one thread for each value of a head, and CUDA limits the threads of a block.
_LARGEST_ROTATED_HEAD = 1024


class CudaLayout(Packed):
    """Base of all layouts for CUDA."""

    FUSIONS: ClassVar[Fusions] = (fuse_norms, defer_biases, merge_projections)

    @override
    def rotate(self, x: Tensor, heads: int, cosines: Tensor, sines: Tensor) -> Tensor:
        if 2 * cosines.shape[1] > _LARGEST_ROTATED_HEAD:
            return super().rotate(x, heads, cosines, sines)
        # All rows are one sequence, whose positions are given. `is_packed_batching` allows more rows than positions.
        sequence = x[None]
        inputs = (sequence, self.positions[None], cosines, sines)
        attributes = {"interleaved": 1, "is_packed_batching": 1}
        return contrib_operator("RotaryEmbedding", inputs, like=sequence, **attributes).squeeze(0)


class PackedCuda(CudaLayout):
    """Attention as PackedMultiHeadAttention, which reads rows and finds sequences by their cumulative lengths.

    Every sequence starts at position 0, so one array [1, 1 or H, N, N] holds the masks, windows and biases of all
    sequences. Rows are gathered only for biases that depend on the content of queries or keys, for capped scores, for
    tokens that no token attends to, and for heads of more than 1,024 values. ONNX Runtime has no fused kernel for these
    heads: its unfused kernel computes padding, and copies data to the host in every layer. It gives wrong results if
    the value width is more than twice the key width, or if a batch has more than 2^31 scores.
    """

    INPUT_AXES: ClassVar[Axes] = {
        **Packed.INPUT_AXES,
        "token_offset": ("batch", "sequence"),
        "cu_seqlens": ("batch + 1",),
    }

    def __init__(self, inputs: Mapping[str, Tensor]) -> None:
        super().__init__(inputs)
        self._biases: dict[tuple[object, ...], Tensor] = {}

    @override
    def attend(self, query: Tensor, key: Tensor, value: Tensor, heads: int, terms: ScoreTerms) -> Tensor:
        head_dim, value_dim = query.shape[1] // heads, value.shape[1] // heads
        half = query.dtype == torch.half
        padded = padded_attention(half=half, head_dim=head_dim, value_dim=value_dim, attention_bias=not terms.are_zero)
        gathers = terms.need_standard_operators or self.attended_lengths is not None
        if gathers or not is_always_fused(padded):
            return super().attend(query, key, value, heads, terms)
        q, k = (pad_heads(rows, heads, padded.head_dim) for rows in (query, key))
        v = pad_heads(value, heads, padded.value_dim)
        inputs = (q, k, v, None, self.inputs["token_offset"], self.inputs["cu_seqlens"])
        context = contrib_operator(
            "PackedMultiHeadAttention",
            inputs if terms.are_zero else (*inputs, self._bias(terms, query.dtype)),
            like=v,
            num_heads=heads,
            mask_filter_value=MASKED_SCORE,
            # Without this attribute, the operator would divide by the root of the padded size.
            scale=1 / math.sqrt(head_dim),
        )
        if value_dim == padded.value_dim:
            return context
        return context.view(context.shape[0], heads, padded.value_dim)[:, :, :value_dim].flatten(1)

    def _bias(self, terms: ScoreTerms, dtype: torch.dtype) -> Tensor:
        """Return the terms [1, 1 or H, N, N], computed once for all layers with the same terms."""
        kind = terms.pattern, terms.window, terms.slopes, id(terms.table)
        if kind not in self._biases:
            tokens = self.inputs["token_offset"].shape[1]
            # One more than the largest distance.
            span = terms.places[-1] - terms.places[0] + 1 if terms.places else tokens
            by_distance = terms.by_distance(span, dtype)
            # The column of each pair's distance. int32, because there are N² columns.
            queries = terms.place(torch.arange(tokens, dtype=torch.int32))
            # N as the start of a Range stays on the CPU. As a term of a sum, N would be copied to the GPU.
            keys = queries + (span - 1) if terms.places else torch.arange(span - 1, 2 * span - 1, dtype=torch.int32)
            columns = keys - queries[:, None]
            shape = by_distance.shape[0], tokens, tokens
            # `index_select` would be traced with columns in int64.
            bias = torch.onnx.ops.symbolic("Gather", (by_distance, columns), {"axis": 1}, dtype=dtype, shape=shape)
            self._biases[kind] = bias[None]
        return self._biases[kind]


def bias_heads(config: EncoderConfig) -> int:
    """Return H of the largest array [H, N, N] that `PackedCuda` adds to scores; 0 if it adds none."""
    sizes = {"head_dim": config.head_dim, "value_dim": config.value_dim}
    fused = is_always_fused(padded_attention(half=False, **sizes, attention_bias=True))
    if needs_standard_operators(config) or config.expansion_id is not None or not fused:
        return 0
    if config.distance_bias or config.positions is Positions.ALIBI:
        return config.heads
    decoder = config.decoder if config.decodes_rows else None
    masks = config.mask, decoder.mask if decoder and decoder.self_attention else Mask.NONE
    return int(set(masks) != {Mask.NONE} or bool(config.local_layers))


def needs_standard_operators(config: EncoderConfig) -> bool:
    """Return whether PackedMultiHeadAttention cannot compute an encoder's scores, as `ScoreTerms` says of a layer."""
    return config.multiplies_distances or config.score_cap > 0


def pad_heads(rows: Tensor, heads: int, size: int) -> Tensor:
    """Pad each head of rows [T, H·n] with zeros to `size` values; zeros change no product of queries and keys."""
    head_dim = rows.shape[1] // heads
    if head_dim == size:
        return rows
    return F.pad(rows.view(rows.shape[0], heads, head_dim), (0, size - head_dim)).flatten(1)


class PackedCudaSeparateNorms(PackedCuda):
    """`PackedCuda` without SkipLayerNormalization, for models where it is inexact: see `ranges.py`.

    ONNX Runtime does not fuse Add and LayerNormalization into that operator: its optimizer (SkipLayerNormFusion) fuses
    only tensors of three dimensions, and rows have two.
    """

    FUSIONS: ClassVar[Fusions] = (defer_biases, merge_projections)


def contrib_operator(name: str, inputs: tuple[Tensor | None, ...], *, like: Tensor, **attributes: float) -> Tensor:
    """Write one operator of the domain com.microsoft; its output has the type and shape of `like`."""
    return torch.onnx.ops.symbolic(
        f"com.microsoft::{name}", inputs, {**attributes}, dtype=like.dtype, shape=like.shape, version=1
    )
