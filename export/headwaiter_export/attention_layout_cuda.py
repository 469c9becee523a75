"""The packed layout for CUDA, written with ONNX Runtime's own operators where they are faster.

`PackedCuda` is the layout of the graphs that a server runs on a GPU. Its operators belong to the domain com.microsoft,
so only ONNX Runtime can run these graphs. Shapes are those of `attention_layout.py`.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from headwaiter_export.attention_layout import Axes, Fusions, Packed
from headwaiter_export.config import Mask
from headwaiter_export.fusion import defer_biases
from headwaiter_export.masks import MASKED_SCORE


class CudaLayout(Packed):
    """Base of all layouts for CUDA.

    Attributes:
        FUSES_NORMS: whether a residual sum and the norm after it are one operator.
    """

    FUSIONS: ClassVar[Fusions] = (defer_biases,)
    FUSES_NORMS: ClassVar[bool] = True

    @override
    def add_and_normalize(self, x: Tensor, residual: Tensor, norm: nn.Module) -> Tensor:
        if not self.FUSES_NORMS:
            return super().add_and_normalize(x, residual, norm)
        assert isinstance(norm, nn.LayerNorm)
        # One kernel instead of two. On the CPU this operator is a scalar loop, 7 times slower than the two.
        inputs = (x, residual, norm.weight, norm.bias)
        return contrib_operator("SkipLayerNormalization", inputs, like=x, epsilon=norm.eps)


class PackedCuda(CudaLayout):
    """Attention as PackedMultiHeadAttention, which reads rows and finds sequences by their cumulative lengths.

    The operator has no masks, so attention with a mask is gathered. Values more than twice as wide as the keys are
    gathered too: without a fused kernel the operator writes its output into the memory of queries and keys. An output
    wider than both together would overwrite the memory of the values, which the operator still reads.
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
        return contrib_operator(
            "PackedMultiHeadAttention",
            (query, key, value, None, self._inputs["token_offset"], self._inputs["cu_seqlens"]),
            like=value,
            num_heads=heads,
            mask_filter_value=MASKED_SCORE,
        )


class PackedCudaSeparateNorms(PackedCuda):
    """`PackedCuda` for a model whose norms SkipLayerNormalization would compute inexactly, see `skip_layer_norm.py`.

    ONNX Runtime does not fuse the operators Add and LayerNormalization again, because rows have two dimensions: its
    optimizer (SkipLayerNormFusion) fuses only tensors of three.
    """

    FUSES_NORMS: ClassVar[bool] = False


def contrib_operator(name: str, inputs: tuple[Tensor | None, ...], *, like: Tensor, **attributes: float) -> Tensor:
    """Write one operator of the domain com.microsoft; its output has the type and shape of `like`."""
    return torch.onnx.ops.symbolic(
        f"com.microsoft::{name}", inputs, {**attributes}, dtype=like.dtype, shape=like.shape, version=1
    )
