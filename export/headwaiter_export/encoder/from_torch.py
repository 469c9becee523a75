"""Convert PyTorch's attention, encoders and decoders to encoders of features, for `export_bundle`.

The modules are `nn.MultiheadAttention`, `nn.TransformerEncoder` and `nn.TransformerDecoder`.

An encoder computes the same as the module in eval mode, without dropout. It shares weights that are float32 on the CPU,
and copies all others. A missing bias becomes zeros, a missing LayerNorm weight becomes ones. If an encoder cannot
reproduce the module, the error names the attribute. A copy of the module is run beside the encoder, so a module that
computes anything else than its classes say is refused too.
"""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks
from torch.nn.utils.parametrize import is_parametrized

from headwaiter_export.config.choices import ROW_POOLINGS, Activation, DecoderInput, Mask, Norm, Pooling, Positions
from headwaiter_export.config.decoder import DecoderConfig
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.config.field_checks import ConfigError
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_export.encoder.reference import inputs_of, random_sequences, run_in_pytorch
from headwaiter_server.runtime.numeric_tolerances import largest_differences

Weights = dict[str, Tensor]
Module = TypeVar("Module", bound=nn.Module)
_Stack = nn.TransformerEncoder | nn.TransformerDecoder
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


def has_changed_activation(layer: nn.TransformerEncoderLayer) -> bool:
    """Return whether PyTorch's fast path computes another activation: it knows that of the constructor only."""
    made = nn.TransformerEncoderLayer(1, 1, 1, activation=layer.activation, device="meta")
    return bool(made.activation_relu_or_gelu != layer.activation_relu_or_gelu)


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
    encoder = Encoder.with_weights(config, _attention_weights(module, "layers.0.attention"))
    return _checked(encoder, partial(_run, _copy(module), mask))


def from_cross_attention(module: nn.MultiheadAttention, *, max_tokens: int) -> Encoder:
    """Convert `nn.MultiheadAttention`, used as cross-attention, to an encoder of sources and targets.

    The queries are the rows of the target, and the keys and values are the rows of the source, [n, embed_dim] each.

    Args:
        module: the module, in any precision and on any device.
        max_tokens: most rows of a source and its target together.

    Raises:
        ConversionError: the module cannot be reproduced; the message names the attribute.
        ConfigError: an argument is wrong.
    """
    _check_hooks(module)
    _check_attention(module, "module")
    config = EncoderConfig(
        **_attention_choices(module),
        layers=0,
        d_ff=0,
        decoder=DecoderConfig(layers=1, d_ff=0, input=DecoderInput.TARGET, mask=Mask.NONE, self_attention=False),
        residual=False,
        norm=Norm.NONE,
        max_tokens=max_tokens,
        pooling=Pooling.NONE,
    )
    encoder = Encoder.with_weights(config, _attention_weights(module, "decoder.layers.0.attention"))
    own = _copy(module)
    return _checked(encoder, lambda source, target: own(target, source, source, need_weights=False)[0])


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
    _check_stack(module)
    config = EncoderConfig(
        **_stack_fields(module),
        layers=len(module.layers),
        d_ff=module.layers[0].linear1.out_features,
        max_tokens=max_tokens,
        mask=mask,
        pooling=pooling,
        normalize=normalize,
    )
    encoder = Encoder.with_weights(config, _stack_weights(module, ""))
    return _checked(encoder, partial(_run, _copy(module), mask))


def from_transformer_decoder(
    decoder: nn.TransformerDecoder,
    encoder: nn.TransformerEncoder | None = None,
    *,
    max_tokens: int,
    target_mask: Mask = Mask.NONE,
    source_mask: Mask = Mask.NONE,
) -> Encoder:
    """Convert `nn.TransformerDecoder`, perhaps over an `nn.TransformerEncoder`, to an encoder of sources and targets.

    For `nn.Transformer`, pass its `decoder` and its `encoder`. A sequence has the rows of its source, [n, d_model], and
    then those of its target, [m, d_model], which PyTorch calls `src` and `tgt`.

    Args:
        decoder: the decoder, in any precision and on any device.
        encoder: the encoder whose rows the decoder attends to; without it, the decoder attends to the source itself.
        max_tokens: most rows of a source and its target together.
        target_mask: which rows of the target a row of the target attends to; PyTorch takes it as `tgt_mask` of a call.
        source_mask: the same for the source, `src_mask`.

    Raises:
        ConversionError: a module cannot be reproduced; the message names the attribute.
        ConfigError: an argument is wrong.
    """
    target_mask, source_mask = Mask(target_mask), Mask(source_mask)
    if encoder is None and source_mask is not Mask.NONE:
        raise ConfigError(f"source_mask is {source_mask}, and there is no encoder: leave it out")
    _require_class(decoder, nn.TransformerDecoder, "decoder")
    if encoder is not None:
        _require_class(encoder, nn.TransformerEncoder, "encoder")
    stacks: dict[str, Any] = {"decoder": decoder} if encoder is None else {"decoder": decoder, "encoder": encoder}
    for name, module in stacks.items():
        try:
            _check_hooks(module)
            _check_stack(module)
        except ConversionError as error:
            raise ConversionError(f"{name}: {error}") from None
    for name, value in _stack_choices(encoder or decoder).items():
        if value != (own := _stack_choices(decoder)[name]):
            raise ConversionError(f"the encoder has {name} {value}, but the decoder has {own}: make them equal")
    config = EncoderConfig(
        **_stack_fields(decoder),
        layers=0 if encoder is None else len(encoder.layers),
        d_ff=0 if encoder is None else encoder.layers[0].linear1.out_features,
        decoder=DecoderConfig(
            layers=len(decoder.layers),
            d_ff=decoder.layers[0].linear1.out_features,
            input=DecoderInput.TARGET,
            mask=target_mask,
        ),
        max_tokens=max_tokens,
        mask=source_mask,
        pooling=Pooling.NONE,
    )
    weights = _stack_weights(decoder, "decoder.")
    if encoder is not None:
        weights |= _stack_weights(encoder, "")
    own_encoder, own_decoder = None if encoder is None else _copy(encoder), _copy(decoder)

    def run(source: Tensor, target: Tensor) -> Tensor:
        memory = source if own_encoder is None else _run(own_encoder, source_mask, source)
        rows: Tensor = own_decoder(target, memory, tgt_mask=_masked_pairs(target_mask, len(target)))
        return rows

    return _checked(Encoder.with_weights(config, weights), run)


def _check_pooling(pooling: Pooling) -> None:
    if pooling not in (*ROW_POOLINGS, Pooling.NONE):
        raise ConfigError(f"pooling is {pooling}, which the module lacks: choose another pooling")


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


def _copy(module: Module) -> Module:
    """Return a copy of a module in float32 on the CPU."""
    copied = copy.deepcopy(module)
    for name, layer in module.named_modules():
        if isinstance(layer, nn.TransformerDecoderLayer):
            # A copy of such a layer forgets an activation that is a module.
            part: Any = copied.get_submodule(name)
            part.activation = layer.activation
    return copied.to("cpu", torch.float32).eval()


@torch.inference_mode()
def _checked(encoder: Encoder, run: Callable[..., Tensor]) -> Encoder:
    """Return the encoder if the module gives the same hidden rows.

    `run` takes the rows of a sequence, or of its source and of its target, and returns the module's rows: those of the
    target, if there is one. It runs without PyTorch's fast path, which computes the exact gelu for nn.GELU("tanh").
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        for sequence in random_sequences(encoder.config, _compared_lengths(encoder.config)):
            (expected,) = run_in_pytorch(encoder, [sequence])
            parts = [*inputs_of(encoder.config, sequence).values()]
            actual = run(*parts).numpy()
            assert expected.hidden is not None
            difference = min(largest_differences(actual, expected.hidden[-len(parts[-1]) :]))
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


def _masked_pairs(mask: Mask, rows: int) -> Tensor | None:
    """Return whether each row does not attend to each other, bool [n, n]; None if all attend to all."""
    if mask is Mask.NONE:
        return None
    pairs = torch.ones(rows, rows, dtype=torch.bool)
    return pairs.triu(1) if mask is Mask.CAUSAL else torch.eye(rows, dtype=torch.bool)


def _run(module: nn.Module, mask: Mask, x: Tensor) -> Tensor:
    """Return the hidden rows [n, d] of one sequence."""
    masked = _masked_pairs(mask, len(x))
    if isinstance(module, nn.MultiheadAttention):
        rows: Tensor = module(x, x, x, attn_mask=masked, need_weights=False)[0]
    else:
        rows = module(x, mask=masked)
    return rows


def _check_stack(module: _Stack) -> None:
    """Check that all layers have PyTorch's own classes, and equal choices."""
    decodes = isinstance(module, nn.TransformerDecoder)
    _require_class(module, nn.TransformerDecoder if decodes else nn.TransformerEncoder, "module")
    layer_class = nn.TransformerDecoderLayer if decodes else nn.TransformerEncoderLayer
    numbers = (1, 2, 3) if decodes else (1, 2)
    if not module.layers:
        raise ConversionError("layers is empty: give at least one layer")
    norms = {} if module.norm is None else {"norm": module.norm}
    for name, layer in _named_layers(module):
        _require_class(layer, layer_class, name)
        for attention in ("self_attn", "multihead_attn") if decodes else ("self_attn",):
            _check_attention(getattr(layer, attention), f"{name}.{attention}")
        _require_class(layer.linear1, nn.Linear, f"{name}.linear1")
        _require_class(layer.linear2, nn.Linear, f"{name}.linear2")
        for dropout in ("dropout", *(f"dropout{number}" for number in numbers)):
            _require_class(getattr(layer, dropout), nn.Dropout, f"{name}.{dropout}")
        norms |= {f"{name}.norm{number}": getattr(layer, f"norm{number}") for number in numbers}
        choices, first = _layer_choices(layer, name), _layer_choices(module.layers[0], "layers.0")
        for choice, value in choices.items():
            if value != first[choice]:
                raise ConversionError(
                    f"{name} has {choice} {value}, but layers.0 has {first[choice]}: give all layers the same {choice}"
                )
        if not decodes:  # PyTorch has no fast path for decoders.
            if has_changed_activation(layer):
                raise ConversionError(
                    f"{name}.activation was changed after the layer was made, and PyTorch's fast path still computes "
                    "the old one: pass it to the constructor"
                )
        elif (heads := layer.multihead_attn.num_heads) != layer.self_attn.num_heads:
            raise ConversionError(
                f"{name}.multihead_attn has {heads} heads, but {name}.self_attn {layer.self_attn.num_heads}: make them "
                "equal"
            )
        elif (width := layer.multihead_attn.embed_dim) != layer.self_attn.embed_dim:
            raise ConversionError(
                f"{name}.multihead_attn has embed_dim {width}, but {name}.self_attn {layer.self_attn.embed_dim}: make "
                "them equal"
            )
    for name, norm in norms.items():
        _check_norm(norm, name, module)


def _check_attention(attention: nn.MultiheadAttention, name: str) -> None:
    """Check that keys and values are projections of the input rows only."""
    _require_class(attention, nn.MultiheadAttention, name)
    _require_class(attention.out_proj, NonDynamicallyQuantizableLinear, f"{name}.out_proj")
    for width in ("kdim", "vdim"):
        if getattr(attention, width) != attention.embed_dim:
            raise ConversionError(
                f"{name}.{width} is {getattr(attention, width)}: it must be embed_dim, {attention.embed_dim}"
            )
    for row in ("bias_k", "bias_v"):
        if getattr(attention, row) is not None:
            raise ConversionError(f"{name}.{row} adds a row to the keys or values: it must be None")
    if attention.add_zero_attn:
        raise ConversionError(f"{name}.add_zero_attn adds a row to keys and values: it must be False")


def _check_norm(norm: nn.Module, name: str, module: _Stack) -> None:
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


def _named_layers(module: _Stack) -> list[tuple[str, Any]]:
    return [(f"layers.{i}", layer) for i, layer in enumerate(module.layers)]


def _stack_choices(module: _Stack) -> dict[str, Any]:
    """Return the choices that an encoder and its decoder must share."""
    first: Any = module.layers[0]
    choices = _layer_choices(first, "layers.0")
    del choices["dim_feedforward"]
    return {**choices, "layer_norm_eps": first.norm1.eps, "norm": "no norm" if module.norm is None else "a norm"}


def _layer_choices(layer: Any, name: str) -> dict[str, Any]:
    """Return the choices that all layers must share, named as the arguments of TransformerEncoderLayer."""
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


def _stack_fields(module: _Stack) -> dict[str, Any]:
    """Return the fields of EncoderConfig that a stack of layers determines, without its depth and `d_ff`."""
    first: Any = module.layers[0]
    return {
        **_attention_choices(first.self_attn),
        "norm": Norm.PRE if first.norm_first else Norm.POST,
        "final_norm": module.norm is not None,
        "norm_eps": first.norm1.eps,
        "activation": _activation(first.activation, "layers.0.activation"),
    }


def _stack_weights(module: _Stack, prefix: str) -> Weights:
    weights = {} if module.norm is None else _norm_weights(module.norm, f"{prefix}norm")
    for name, layer in _named_layers(module):
        weights |= _layer_weights(layer, prefix + name)
    return weights


def _layer_weights(layer: Any, name: str) -> Weights:
    weights = {
        **_attention_weights(layer.self_attn, f"{name}.attention"),
        **_norm_weights(layer.norm1, f"{name}.attention_norm"),
        **_weight_and_bias(layer.linear1.weight, layer.linear1.bias, f"{name}.feed_forward.up"),
        **_weight_and_bias(layer.linear2.weight, layer.linear2.bias, f"{name}.feed_forward.down"),
    }
    if not isinstance(layer, nn.TransformerDecoderLayer):
        return weights | _norm_weights(layer.norm2, f"{name}.feed_forward_norm")
    return {
        **weights,
        **_attention_weights(layer.multihead_attn, f"{name}.cross_attention"),
        **_norm_weights(layer.norm2, f"{name}.cross_attention_norm"),
        **_norm_weights(layer.norm3, f"{name}.feed_forward_norm"),
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
