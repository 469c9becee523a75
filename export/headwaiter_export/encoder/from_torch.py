"""Convert `nn.MultiheadAttention` and `nn.TransformerEncoder` to encoders of features, for `export_bundle`.

An encoder computes the same as the module in eval mode, without dropout. It shares weights that are float32 on the CPU,
and copies all others. A missing bias becomes zeros, a missing LayerNorm weight becomes ones. If an encoder cannot
reproduce the module, the error names the attribute. A copy of the module is run beside the encoder, so a module that
computes anything else than its classes say is refused too.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks
from torch.nn.utils.parametrize import is_parametrized

from headwaiter_export.config.choices import Activation, Mask, Norm, Pooling, Positions
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.config.field_checks import ConfigError
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_export.encoder.reference import random_sequences, run_in_pytorch
from headwaiter_server.runtime.numeric_tolerances import largest_differences

Weights = dict[str, Tensor]
# Activations by function, or by class of module.
_ACTIVATIONS: dict[object, Activation] = {
    F.relu: Activation.RELU,
    torch.relu: Activation.RELU,
    nn.ReLU: Activation.RELU,
    F.gelu: Activation.GELU,
    F.silu: Activation.SILU,
    nn.SiLU: Activation.SILU,
}
# Rounding in float32 causes up to about 1e-6; the tolerance of hidden rows is 1e-4.
_LARGEST_DIFFERENCE = 1e-4
_GELUS = {"none": Activation.GELU, "tanh": Activation.GELU_TANH}


class ConversionError(Exception):
    """A PyTorch module computes something that an encoder cannot reproduce."""


def from_multihead_attention(
    module: nn.MultiheadAttention,
    *,
    max_tokens: int,
    mask: Mask = Mask.NONE,
    pooling: Pooling = Pooling.NONE,
    normalize: bool = False,
) -> Encoder:
    """Convert `nn.MultiheadAttention`, used as self-attention, to an encoder of features [n, embed_dim].

    `batch_first` may be true or false: it only arranges padded batches.

    Args:
        module: the module, in any precision and on any device.
        max_tokens: most tokens of a sequence.
        mask: which tokens a token attends to; PyTorch takes the mask as an argument of each call.
        pooling: how the hidden rows of a sequence become one vector.
        normalize: whether pooled vectors are scaled to unit length.

    Raises:
        ConversionError: the module cannot be reproduced; the message names the attribute.
        ConfigError: an argument is wrong.
    """
    _check_hooks(module)
    _check_pooling(pooling)
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
    return _checked(Encoder.with_weights(config, _attention_weights(module, "layers.0.attention")), module)


def from_transformer_encoder(
    module: nn.TransformerEncoder,
    *,
    max_tokens: int,
    mask: Mask = Mask.NONE,
    pooling: Pooling = Pooling.NONE,
    normalize: bool = False,
) -> Encoder:
    """Convert `nn.TransformerEncoder` to an encoder of features [n, d_model], like `from_multihead_attention`.

    `norm_first` may be true or false, and the final norm present or absent. `nn.GELU("tanh")` becomes the tanh
    approximation, although PyTorch's fast path computes the exact gelu for it.
    """
    _check_hooks(module)
    _check_pooling(pooling)
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
    return _checked(Encoder.with_weights(config, weights), module)


def _check_pooling(pooling: Pooling) -> None:
    if pooling is Pooling.ATTENTION:
        raise ConfigError("pooling is attention, whose weights the module lacks: choose another pooling")


def _check_hooks(module: nn.Module) -> None:
    """Check that no part of a module computes more than its class says."""
    if _global_forward_hooks or _global_forward_pre_hooks:
        raise ConversionError(
            "all modules have a global forward hook, which the encoder would not run: remove the hook"
        )
    for name, part in module.named_modules():
        name = name or "module"
        if is_parametrized(part):
            raise ConversionError(f"{name} is parametrized: call torch.nn.utils.parametrize.remove_parametrizations")
        if part._forward_hooks or part._forward_pre_hooks:  # noqa: SLF001 - PyTorch has no public list
            raise ConversionError(
                f"{name} has a forward hook, which the encoder would not run: remove the hook; for weight_norm, "
                "spectral_norm and prune, call remove_weight_norm, remove_spectral_norm or prune.remove"
            )
        own = [method for method in vars(part) if callable(getattr(type(part), method, None))]
        if own or vars(part).get("_compiled_call_impl"):
            raise ConversionError(f"{name} has a {(own or ['compile'])[0]} of its own: it must be that of its class")


@torch.inference_mode()
def _checked(encoder: Encoder, module: nn.Module) -> Encoder:
    """Return the encoder if a copy of the module gives the same hidden rows.

    The copy is in float32 on the CPU, and runs without PyTorch's fast path, which computes the exact gelu for
    nn.GELU("tanh").
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        own = copy.deepcopy(module).to("cpu", torch.float32).eval()
        for sequence in random_sequences(encoder.config, _compared_lengths(encoder.config)):
            (expected,) = run_in_pytorch(encoder, [sequence])
            actual = _run(own, torch.from_numpy(sequence), encoder.config.mask).numpy()
            assert expected.hidden is not None
            difference = min(largest_differences(actual, expected.hidden))
            if not difference <= _LARGEST_DIFFERENCE:
                raise ConversionError(
                    f"the module differs by {difference:.2e} from its classes on a sequence of {len(sequence)} rows, "
                    f"more than {_LARGEST_DIFFERENCE:g}: it computes something that the encoder cannot reproduce"
                )
    except ConversionError:
        raise
    except Exception as error:
        raise ConversionError(f"the module cannot be run to check the encoder ({error!r:.200}): correct it") from error
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    return encoder


def _compared_lengths(config: EncoderConfig) -> list[int]:
    return sorted({min(n, config.max_tokens) for n in (config.min_tokens, config.min_tokens + 1, 7, 40)})


def _run(module: nn.Module, x: Tensor, mask: Mask) -> Tensor:
    """Return the hidden rows [n, d] of one sequence."""
    masked = None
    if mask is not Mask.NONE:
        pairs = torch.ones(len(x), len(x), dtype=torch.bool)
        masked = pairs.triu(1) if mask is Mask.CAUSAL else torch.eye(len(x), dtype=torch.bool)
    if isinstance(module, nn.MultiheadAttention):
        rows: Tensor = module(x, x, x, attn_mask=masked, need_weights=False)[0]
    else:
        rows = module(x, mask=masked)
    return rows


def _check_encoder(module: nn.TransformerEncoder) -> None:
    """Check that all layers have PyTorch's own classes, and equal choices."""
    _require_class(module, nn.TransformerEncoder, "module")
    if not module.layers:
        raise ConversionError("layers is empty: give at least one layer")
    norms = {} if module.norm is None else {"norm": module.norm}
    for name, layer in _named_layers(module):
        _require_class(layer, nn.TransformerEncoderLayer, name)
        _check_attention(layer.self_attn, f"{name}.self_attn")
        _require_class(layer.linear1, nn.Linear, f"{name}.linear1")
        _require_class(layer.linear2, nn.Linear, f"{name}.linear2")
        for dropout in ("dropout", "dropout1", "dropout2"):
            _require_class(getattr(layer, dropout), nn.Dropout, f"{name}.{dropout}")
        norms |= {f"{name}.norm1": layer.norm1, f"{name}.norm2": layer.norm2}
        choices, first = _layer_choices(layer, name), _layer_choices(module.layers[0], "layers.0")
        for choice, value in choices.items():
            if value != first[choice]:
                raise ConversionError(
                    f"{name} has {choice} {value}, but layers.0 has {first[choice]}: give all layers the same {choice}"
                )
        _check_activation(layer, name)
    for name, norm in norms.items():
        _check_norm(norm, name, module)


def _check_attention(attention: nn.MultiheadAttention, name: str) -> None:
    """Check that keys and values are projections of the input rows only."""
    _require_class(attention, nn.MultiheadAttention, name)
    _require_class(attention.out_proj, NonDynamicallyQuantizableLinear, f"{name}.out_proj")
    for width in ("kdim", "vdim"):
        if getattr(attention, width) != attention.embed_dim:
            raise ConversionError(
                f"{name}.{width} is {getattr(attention, width)}: for self-attention, it must be embed_dim, "
                f"{attention.embed_dim}"
            )
    for row in ("bias_k", "bias_v"):
        if getattr(attention, row) is not None:
            raise ConversionError(f"{name}.{row} adds a row to the keys or values: it must be None")
    if attention.add_zero_attn:
        raise ConversionError(f"{name}.add_zero_attn adds a row to keys and values: it must be False")


def _check_norm(norm: nn.Module, name: str, module: nn.TransformerEncoder) -> None:
    """Check that a norm is a LayerNorm over one row, with the same epsilon as the first norm."""
    _require_class(norm, nn.LayerNorm, name)
    first: Any = module.layers[0]
    if norm.normalized_shape != (first.self_attn.embed_dim,):
        raise ConversionError(
            f"{name}.normalized_shape is {norm.normalized_shape}: it must be ({first.self_attn.embed_dim},)"
        )
    if norm.eps != first.norm1.eps:
        raise ConversionError(f"{name}.eps is {norm.eps}, but layers.0.norm1.eps {first.norm1.eps}: make them equal")


def _require_class(module: object, kind: type[nn.Module], name: str) -> None:
    """Check that a module has exactly this class; a subclass may compute something else."""
    if type(module) is not kind:
        is_layer = kind is nn.TransformerEncoder and type(module) is nn.TransformerEncoderLayer
        advice = ": wrap it, nn.TransformerEncoder(layer, 1)" if is_layer else ""
        raise ConversionError(f"{name} is a {type(module).__name__}: it must be a {kind.__name__} itself{advice}")


def _named_layers(module: nn.TransformerEncoder) -> list[tuple[str, Any]]:
    return [(f"layers.{i}", layer) for i, layer in enumerate(module.layers)]


def _layer_choices(layer: Any, name: str) -> dict[str, Any]:
    """Return the choices that all layers must share, named as the arguments of TransformerEncoderLayer."""
    return {
        "d_model": layer.self_attn.embed_dim,
        "nhead": layer.self_attn.num_heads,
        "dim_feedforward": layer.linear1.out_features,
        "activation": _activation(layer.activation, f"{name}.activation"),
        "norm_first": layer.norm_first,
    }


def _check_activation(layer: nn.TransformerEncoderLayer, name: str) -> None:
    """Check that PyTorch's fast path computes the layer's activation: it knows that of the constructor only."""
    made = nn.TransformerEncoderLayer(1, 1, 1, activation=layer.activation, device="meta")
    if made.activation_relu_or_gelu != layer.activation_relu_or_gelu:
        raise ConversionError(
            f"{name}.activation was changed after the layer was made, and PyTorch's fast path still computes the old "
            "one: pass it to the constructor"
        )


def _activation(activation: Callable[[Tensor], Tensor], name: str) -> Activation:
    if type(activation) is nn.GELU:
        return _GELUS[activation.approximate]
    known = _ACTIVATIONS.get(type(activation) if isinstance(activation, nn.Module) else activation)
    if known is None:
        found = getattr(activation, "__name__", activation)
        raise ConversionError(f"{name} is {found}: it must be PyTorch's relu, gelu or silu, or nn.GELU('tanh')")
    return known


def _attention_choices(attention: nn.MultiheadAttention) -> dict[str, Any]:
    """Return the fields of EncoderConfig that an attention module determines."""
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
        **_weight_and_bias(layer.linear1.weight, layer.linear1.bias, f"{name}.feed_forward.up"),
        **_weight_and_bias(layer.linear2.weight, layer.linear2.bias, f"{name}.feed_forward.down"),
        **_norm_weights(layer.norm2, f"{name}.feed_forward_norm"),
    }


def _attention_weights(attention: nn.MultiheadAttention, name: str) -> Weights:
    weights = _weight_and_bias(attention.out_proj.weight, attention.out_proj.bias, f"{name}.output")
    # PyTorch stores the projections to queries, keys and values as one tensor.
    projections = _weight_and_bias(attention.in_proj_weight, attention.in_proj_bias, name)
    for kind in ("weight", "bias"):
        for part, rows in zip(("query", "key", "value"), projections[f"{name}.{kind}"].chunk(3), strict=True):
            weights[f"{name}.{part}.{kind}"] = rows
    return weights


def _norm_weights(norm: Any, name: str) -> Weights:
    return _weight_and_bias(torch.ones(norm.normalized_shape) if norm.weight is None else norm.weight, norm.bias, name)


def _weight_and_bias(weight: Tensor, bias: Tensor | None, name: str) -> Weights:
    tensors = {"weight": weight, "bias": torch.zeros(len(weight)) if bias is None else bias}
    return {f"{name}.{kind}": tensor.detach().to("cpu", torch.float32) for kind, tensor in tensors.items()}
