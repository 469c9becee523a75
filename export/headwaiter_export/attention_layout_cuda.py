"""How the packed batch is written for CUDA: attention, and sums before norms, in ONNX Runtime's own operators."""

from typing import ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from headwaiter_export.attention_layout import MASKED, Axes, Fusions, Packed, visible
from headwaiter_export.config import Mask
from headwaiter_export.fusion import defer_biases, fuse_projections


class Cuda(Packed):
    """What all graphs for CUDA have in common."""

    FUSIONS: ClassVar[Fusions] = (defer_biases,)

    @override
    def add_and_normalize(self, x: Tensor, residual: Tensor, norm: nn.Module) -> Tensor:
        assert isinstance(norm, nn.LayerNorm)
        # One kernel instead of two. Not so on the CPU, where it is a scalar loop: 7 times slower than the two there.
        return _contrib("SkipLayerNormalization", (x, residual, norm.weight, norm.bias), like=x, epsilon=norm.eps)


class PackedCuda(Cuda):
    """PackedMultiHeadAttention, which takes rows and finds the sequences by their cumulative lengths.

    It knows no masks, so attention with one is gathered. So are values of more than twice the width of the keys: where
    no fused kernel takes part, the operator writes its answer over queries and keys, and beyond them over the values
    that it still reads.
    """

    INPUT_AXES: ClassVar[Axes] = {
        **Packed.INPUT_AXES,
        "token_offset": ("batch", "sequence"),
        "cu_seqlens": ("batch + 1",),
    }

    @override
    def attend(self, query: Tensor, key: Tensor, value: Tensor, heads: int, mask: Mask) -> Tensor:
        if mask is not Mask.NONE or value.shape[1] > 2 * key.shape[1]:
            return super().attend(query, key, value, heads, mask)
        return _contrib(
            "PackedMultiHeadAttention",
            (query, key, value, None, self._inputs["token_offset"], self._inputs["cu_seqlens"]),
            like=value,
            num_heads=heads,
            mask_filter_value=MASKED,
        )


class FusedCuda(PackedCuda):
    """`PackedCuda` with queries, keys and values from one product: a candidate, no bundle has it."""

    FUSIONS: ClassVar[Fusions] = (*PackedCuda.FUSIONS, fuse_projections)


class GatheredCuda(Cuda):
    """MultiHeadAttention over gathered cells: a candidate, no bundle has it.

    Its key mask has the form that CUDA's memory-efficient kernel takes; with the lengths alone the slowest would run.
    """

    INPUT_AXES: ClassVar[Axes] = {**Packed.INPUT_AXES, "key_spans": ("3 * batch + 2",)}

    @override
    def attend(self, query: Tensor, key: Tensor, value: Tensor, heads: int, mask: Mask) -> Tensor:
        q, k, v = (self.cells(rows) for rows in (query, key, value))
        bias = None
        if mask is Mask.SELF_EXCLUDING:
            seen = visible(mask, q.shape[1])
            assert seen is not None
            # In the type of the scores: the lowest number that it has is below all of them.
            bias = torch.where(seen, 0.0, torch.finfo(q.dtype).min).to(q.dtype)[None, None]
        context = _contrib(
            "MultiHeadAttention",
            (q, k, v, None, self._inputs["key_spans"], bias),
            like=v,
            num_heads=heads,
            mask_filter_value=MASKED,
            unidirectional=int(mask is Mask.CAUSAL),
        )
        return context.flatten(0, 1).index_select(0, self._inputs["scatter"])


def _contrib(name: str, inputs: tuple[Tensor | None, ...], *, like: Tensor, **attributes: float) -> Tensor:
    """Write one operator of ONNX Runtime's own domain, whose output has the type and shape of another tensor."""
    return torch.onnx.ops.symbolic(
        f"com.microsoft::{name}", inputs, {**attributes}, dtype=like.dtype, shape=like.shape, version=1
    )
