"""Turns PyTorch's own modules into encoders of features.

What a module does in eval mode is taken, so there is no dropout. Weights that are in float32 on the CPU are shared with
the module, all others are copied there; a bias, or a norm's weight, that a module does without is one of zeros, or
ones. What cannot be reproduced is refused by the name of its attribute.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from headwaiter_export.config import Activation, EncoderConfig, Mask, Norm, Pooling, Positions
from headwaiter_export.encoder import Encoder

Weights = dict[str, Tensor]

# Functions, and kinds of modules.
_ACTIVATIONS: dict[object, Activation] = {
    F.relu: Activation.RELU,
    torch.relu: Activation.RELU,
    nn.ReLU: Activation.RELU,
    F.gelu: Activation.GELU,
    F.silu: Activation.SILU,
    nn.SiLU: Activation.SILU,
}
_GELUS = {"none": Activation.GELU, "tanh": Activation.GELU_TANH}


class ConversionError(Exception):
    """A PyTorch module computes what our encoder cannot."""


def from_multihead_attention(
    module: nn.MultiheadAttention,
    *,
    max_tokens: int,
    mask: Mask = Mask.NONE,
    pooling: Pooling = Pooling.NONE,
    normalize: bool = False,
) -> Encoder:
    """Turn `nn.MultiheadAttention`, used as self-attention, into an encoder of features [n, embed_dim].

    Whether it is `batch_first` is no matter: that says how a padded batch is laid out, not what a sequence gives.

    Args:
        module: in any precision, on any device.
        max_tokens: most tokens of a sequence.
        mask: which tokens a token attends to; PyTorch is told so at each call.
        pooling: how a sequence becomes one vector.
        normalize: pooled vectors are scaled to unit length.

    Raises:
        ConversionError: naming the attribute that cannot be reproduced.
        ConfigError: an argument is wrong.
    """
    _check_attention(module, "module")
    config = EncoderConfig(
        **_attention_choices(module),
        layers=1,
        d_ff=0,
        residual=False,
        norm=Norm.NONE,
        max_tokens=max_tokens,
        mask=mask,
        pooling=pooling,
        normalize=normalize,
    )
    return Encoder.with_weights(config, _attention_weights(module, "layers.0.attention"))


def from_transformer_encoder(
    module: nn.TransformerEncoder,
    *,
    max_tokens: int,
    mask: Mask = Mask.NONE,
    pooling: Pooling = Pooling.NONE,
    normalize: bool = False,
) -> Encoder:
    """Turn `nn.TransformerEncoder` into an encoder of features [n, d_model].

    Whether it is `batch_first` is no matter, as above. `nn.GELU("tanh")` is taken at its word, though PyTorch's fast
    path computes the exact gelu in its place.

    Args:
        module: in any precision, on any device; `norm_first` or not, with a final norm or none.
        max_tokens: most tokens of a sequence.
        mask: which tokens a token attends to; PyTorch is told so at each call.
        pooling: how a sequence becomes one vector.
        normalize: pooled vectors are scaled to unit length.

    Raises:
        ConversionError: naming the attribute that cannot be reproduced.
        ConfigError: an argument is wrong.
    """
    _check_encoder(module)
    first: Any = module.layers[0]
    config = EncoderConfig(
        **_attention_choices(first.self_attn),
        layers=len(module.layers),
        d_ff=first.linear1.out_features,
        norm=Norm.PRE if first.norm_first else Norm.POST,
        final_norm=module.norm is not None,
        norm_eps=first.norm1.eps,
        activation=_activation(first.activation, "layers.0.activation"),
        max_tokens=max_tokens,
        mask=mask,
        pooling=pooling,
        normalize=normalize,
    )
    weights = {} if module.norm is None else _norm_weights(module.norm, "norm")
    for name, layer in _named_layers(module):
        weights |= _layer_weights(layer, name)
    return Encoder.with_weights(config, weights)


def _check_encoder(module: nn.TransformerEncoder) -> None:
    """Refuse layers that are not PyTorch's own, or not alike."""
    _require_kind(module, nn.TransformerEncoder, "module")
    if not module.layers:
        raise ConversionError("layers is empty: there must be at least one")
    norms = {} if module.norm is None else {"norm": module.norm}
    for name, layer in _named_layers(module):
        _require_kind(layer, nn.TransformerEncoderLayer, name)
        _check_attention(layer.self_attn, f"{name}.self_attn")
        _require_kind(layer.linear1, nn.Linear, f"{name}.linear1")
        _require_kind(layer.linear2, nn.Linear, f"{name}.linear2")
        norms |= {f"{name}.norm1": layer.norm1, f"{name}.norm2": layer.norm2}
        own, first = _traits(layer, name), _traits(module.layers[0], "layers.0")
        for trait, value in own.items():
            if value != first[trait]:
                raise ConversionError(f"{name} has {trait} {value}, and layers.0 {first[trait]}: they must be alike")
    for name, norm in norms.items():
        _check_norm(norm, name, module)


def _check_attention(attention: nn.MultiheadAttention, name: str) -> None:
    """Refuse keys and values that are not projections of the rows themselves."""
    _require_kind(attention, nn.MultiheadAttention, name)
    _require_kind(attention.out_proj, NonDynamicallyQuantizableLinear, f"{name}.out_proj")
    for width in ("kdim", "vdim"):
        if getattr(attention, width) != attention.embed_dim:
            raise ConversionError(
                f"{name}.{width} is {getattr(attention, width)}: "
                f"in self-attention it is embed_dim, which is {attention.embed_dim}"
            )
    for row in ("bias_k", "bias_v"):
        if getattr(attention, row) is not None:
            raise ConversionError(f"{name}.{row} is attended to beside the sequence: it must be None")
    if attention.add_zero_attn:
        raise ConversionError(f"{name}.add_zero_attn adds a row beside the sequence: it must be False")


def _check_norm(norm: nn.Module, name: str, module: nn.TransformerEncoder) -> None:
    """Refuse a norm of another kind, over more than a row, or with another epsilon than the first one's."""
    _require_kind(norm, nn.LayerNorm, name)
    first: Any = module.layers[0]
    if norm.normalized_shape != (first.self_attn.embed_dim,):
        raise ConversionError(
            f"{name}.normalized_shape is {norm.normalized_shape}: it must be that of a row, "
            f"({first.self_attn.embed_dim},)"
        )
    if norm.eps != first.norm1.eps:
        raise ConversionError(f"{name}.eps is {norm.eps}, and layers.0.norm1.eps {first.norm1.eps}: it must be one")


def _require_kind(module: object, kind: type[nn.Module], name: str) -> None:
    """Refuse what is not of this very class: a subclass may compute something else."""
    if type(module) is not kind:
        raise ConversionError(f"{name} is a {type(module).__name__}: only {kind.__name__} itself is known")


def _named_layers(module: nn.TransformerEncoder) -> list[tuple[str, Any]]:
    return [(f"layers.{i}", layer) for i, layer in enumerate(module.layers)]


def _traits(layer: Any, name: str) -> dict[str, Any]:
    """Return what the configuration says of a layer, by the names of its constructor's arguments."""
    return {
        "d_model": layer.self_attn.embed_dim,
        "nhead": layer.self_attn.num_heads,
        "dim_feedforward": layer.linear1.out_features,
        "activation": _activation(layer.activation, f"{name}.activation"),
        "norm_first": layer.norm_first,
    }


def _activation(activation: Callable[[Tensor], Tensor], name: str) -> Activation:
    if type(activation) is nn.GELU:
        return _GELUS[activation.approximate]
    known = _ACTIVATIONS.get(type(activation) if isinstance(activation, nn.Module) else activation)
    if known is None:
        called = getattr(activation, "__name__", activation)
        raise ConversionError(f"{name} is {called}: it must be PyTorch's own relu, gelu or silu, or nn.GELU('tanh')")
    return known


def _attention_choices(attention: nn.MultiheadAttention) -> dict[str, Any]:
    """Return what the configuration says of the rows, which are features as they come, and of attention over them."""
    return {
        "feature_width": attention.embed_dim,
        "feature_projection": False,
        "d_model": attention.embed_dim,
        "heads": attention.num_heads,
        "positions": Positions.NONE,
        "embedding_norm": False,
    }


def _layer_weights(layer: Any, name: str) -> Weights:
    return {
        **_attention_weights(layer.self_attn, f"{name}.attention"),
        **_norm_weights(layer.norm1, f"{name}.attention_norm"),
        **_pair(layer.linear1.weight, layer.linear1.bias, f"{name}.feed_forward.up"),
        **_pair(layer.linear2.weight, layer.linear2.bias, f"{name}.feed_forward.down"),
        **_norm_weights(layer.norm2, f"{name}.feed_forward_norm"),
    }


def _attention_weights(attention: nn.MultiheadAttention, name: str) -> Weights:
    weights = _pair(attention.out_proj.weight, attention.out_proj.bias, f"{name}.output")
    # PyTorch has the projections to queries, keys and values in one.
    projections = _pair(attention.in_proj_weight, attention.in_proj_bias, name)
    for kind in ("weight", "bias"):
        for part, rows in zip(("query", "key", "value"), projections[f"{name}.{kind}"].chunk(3), strict=True):
            weights[f"{name}.{part}.{kind}"] = rows
    return weights


def _norm_weights(norm: Any, name: str) -> Weights:
    return _pair(torch.ones(norm.normalized_shape) if norm.weight is None else norm.weight, norm.bias, name)


def _pair(weight: Tensor, bias: Tensor | None, name: str) -> Weights:
    """Return a weight and its bias, which is of zeros where there is none."""
    if bias is None:
        bias = torch.zeros(len(weight))
    pair = {"weight": weight, "bias": bias}
    return {f"{name}.{kind}": tensor.detach().to("cpu", torch.float32) for kind, tensor in pair.items()}
