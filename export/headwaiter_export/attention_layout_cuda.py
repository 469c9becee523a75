"""The packed layout for CUDA, written with ONNX Runtime's own operators where they are faster.

`PackedCuda` is the layout of the graphs that a server runs on a GPU. Its operators belong to the domain com.microsoft,
so only ONNX Runtime can run these graphs. Shapes are those of `attention_layout.py`.
"""

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from headwaiter_export.attention_layout import Axes, Fusions, Packed
from headwaiter_export.fusion import defer_biases
from headwaiter_export.masks import MASKED_SCORE, ScoreTerms
from headwaiter_server.runtime.attention_routes import is_always_fused, padded_attention


class CudaLayout(Packed):
    """Base of all layouts for CUDA.

    Attributes:
        FUSES_NORMS: whether a residual sum and the norm after it are one operator.
    """

    FUSIONS: ClassVar[Fusions] = (defer_biases,)
    FUSES_NORMS: ClassVar[bool] = True

    @override
    def add_and_normalize(self, x: Tensor, residual: Tensor, norm: nn.Module) -> Tensor:
        if not self.FUSES_NORMS or not isinstance(norm, nn.LayerNorm):
            return super().add_and_normalize(x, residual, norm)
        # One kernel instead of two. On the CPU this operator is a scalar loop, 7 times slower than the two.
        inputs = (x, residual, norm.weight, norm.bias)
        return contrib_operator("SkipLayerNormalization", inputs, like=x, epsilon=norm.eps)


class PackedCuda(CudaLayout):
    """Attention as PackedMultiHeadAttention, which reads rows and finds sequences by their cumulative lengths.

    The operator has no masks, so rows are gathered for attention with a mask, a window or a bias by distance. Rows are
    also gathered for heads of more than 1,024 values, because ONNX Runtime has no fused kernel for them. Its unfused
    kernel computes padding, and copies data to the host in every layer. It gives wrong results if the value width is
    more than twice the key width, or if a batch has more than 2^31 scores.
    """

    INPUT_AXES: ClassVar[Axes] = {
        **Packed.INPUT_AXES,
        "token_offset": ("batch", "sequence"),
        "cu_seqlens": ("batch + 1",),
    }

    @override
    def attend(self, query: Tensor, key: Tensor, value: Tensor, heads: int, terms: ScoreTerms) -> Tensor:
        head_dim, value_dim = query.shape[1] // heads, value.shape[1] // heads
        padded = padded_attention(half=query.dtype == torch.half, head_dim=head_dim, value_dim=value_dim)
        if not terms.are_zero or not is_always_fused(padded):
            return super().attend(query, key, value, heads, terms)
        q, k = (pad_heads(rows, heads, padded.head_dim) for rows in (query, key))
        v = pad_heads(value, heads, padded.value_dim)
        context = contrib_operator(
            "PackedMultiHeadAttention",
            (q, k, v, None, self._inputs["token_offset"], self._inputs["cu_seqlens"]),
            like=v,
            num_heads=heads,
            mask_filter_value=MASKED_SCORE,
            # Without this attribute, the operator would divide by the root of the padded size.
            scale=1 / math.sqrt(head_dim),
        )
        if value_dim == padded.value_dim:
            return context
        return context.view(context.shape[0], heads, padded.value_dim)[:, :, :value_dim].flatten(1)


def pad_heads(rows: Tensor, heads: int, size: int) -> Tensor:
    """Pad each head of rows [T, H·n] with zeros to `size` values; zeros change no product of queries and keys."""
    head_dim = rows.shape[1] // heads
    if head_dim == size:
        return rows
    return F.pad(rows.view(rows.shape[0], heads, head_dim), (0, size - head_dim)).flatten(1)


class PackedCudaSeparateNorms(PackedCuda):
    """`PackedCuda` without SkipLayerNormalization, for models where it is inexact: see `skip_layer_norm.py`.

    ONNX Runtime does not fuse Add and LayerNormalization into that operator: its optimizer (SkipLayerNormFusion) fuses
    only tensors of three dimensions, and rows have two.
    """

    FUSES_NORMS: ClassVar[bool] = False


def contrib_operator(name: str, inputs: tuple[Tensor | None, ...], *, like: Tensor, **attributes: float) -> Tensor:
    """Write one operator of the domain com.microsoft; its output has the type and shape of `like`."""
    return torch.onnx.ops.symbolic(
        f"com.microsoft::{name}", inputs, {**attributes}, dtype=like.dtype, shape=like.shape, version=1
    )
