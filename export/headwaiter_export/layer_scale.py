"""Multiply LayerScale into the last linear layer of each block.

LayerScale multiplies each column of a block's output by a learned number, x + λ · block(x)
(https://arxiv.org/abs/2103.17239, section 2). A block ends with a linear layer, so λ · (W y + b) = (λ W) y + λ b.
"""

from torch import Tensor

from headwaiter_export.config import EncoderConfig
from headwaiter_export.family import Family
from headwaiter_export.weights import take_tensor


def fold_layer_scales(
    weights: dict[str, Tensor], tensors: dict[str, Tensor], family: Family, config: EncoderConfig
) -> None:
    """Remove the scales of all layers from a checkpoint's `tensors`, and multiply them into an encoder's `weights`."""
    for layer in range(config.layers):
        for module, scale_name in family.layer_scales.items():
            scale = take_tensor(tensors, f"{family.layer_prefix}.{layer}.{scale_name}", (config.d_model,))
            weight, bias = (f"layers.{layer}.{module}.{kind}" for kind in ("weight", "bias"))
            weights[weight] = weights[weight] * scale[:, None]
            if bias in weights:
                weights[bias] = weights[bias] * scale
