"""Quantise the linear layers of an encoder to int8.

`quantize` makes the encoder from which `bundle.py` writes the int8 graph. Linear layers become `QuantizedLinear`,
except those that must stay in float32 to keep the tolerance. Shapes: R rows; d_in and d_out are the widths of a layer's
input and output.
"""

import copy
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headwaiter_export.encoder import Encoder
from headwaiter_export.parity import Reference, Sequence, measure_encoder, run_in_pytorch

# Half as far from 1 as the tolerance allows: other processors round differently, and other inputs may be harder.
_TARGET_COSINE = 0.995
_HIDDEN_TARGET_COSINE = 0.95
# Integers are symmetric: −127 to 127.
_MAX_INTEGER = 127
# Activations are stored as 1 to 255: ONNX Runtime's fast kernels multiply unsigned rows by signed weights.
_ZERO_POINT = 128
# Lower bound of the magnitude of a row or channel, so that the inverse of an all-zero one stays finite.
_MIN_MAGNITUDE = 1e-30
# From 0 to 1: the share of the differences between input channels that is moved into the weights.
_SMOOTHING = 0.8


class QuantizedLinear(nn.Module):
    """A linear layer with an integer product: y_rj = s_r · w_j · Σ_i q_ri · W_ij + b_j.

    Output channel j has its own scale w_j. Row r of the input, which is one token, has its own scale
    s_r = max_i |x_ri · f_i| / 127, so no row changes another row's result. q is x · f divided by s, and W the weights
    divided by f and w; both are rounded to the nearest integer, half to even. The factors f bring input channels to
    similar magnitudes, because a few large channels would leave few integers for the others
    (https://arxiv.org/abs/2211.10438).

    Args:
        linear: the layer in float32.
        factors: factor of each input channel, [d_in].
    """

    weight: Tensor

    def __init__(self, linear: nn.Linear, factors: Tensor) -> None:
        super().__init__()
        weight = linear.weight.detach() / factors
        scales = weight.abs().amax(1).clamp(min=_MIN_MAGNITUDE) / _MAX_INTEGER
        self.factors = nn.Parameter(factors, requires_grad=False)
        # A buffer, because the encoder takes its floating-point type from its parameters, and this tensor is int8.
        self.register_buffer("weight", (weight / scales[:, None]).round().to(torch.int8).T.contiguous())
        self.weight_scales = nn.Parameter(scales, requires_grad=False)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """Transform rows [R, d_in] to [R, d_out]."""
        x = x * self.factors
        # Not `clamp(min=...)`: in a graph, it would also make infinity finite.
        largest = torch.maximum(x.abs().amax(1, keepdim=True), torch.tensor(_MIN_MAGNITUDE))
        scaled = x * (_MAX_INTEGER / largest)
        if torch.onnx.is_in_onnx_export():
            product = self._product_in_graph(scaled)
        else:
            product = F.linear(scaled.round(), self.weight.T.float()) * self.weight_scales
        y = product * (largest * (1 / _MAX_INTEGER))
        return y if self.bias is None else y + self.bias

    def _product_in_graph(self, scaled: Tensor) -> Tensor:
        one, zero_point = torch.tensor(1.0), torch.tensor(_ZERO_POINT, dtype=torch.uint8)
        integers = torch.onnx.ops.symbolic(
            "QuantizeLinear", (scaled, one, zero_point), dtype=torch.uint8, shape=scaled.shape
        )
        return torch.onnx.ops.symbolic(
            "com.microsoft::MatMulIntegerToFloat",
            (integers, self.weight, one, self.weight_scales, zero_point),
            dtype=torch.float32,
            shape=(scaled.shape[0], self.weight.shape[1]),
            version=1,
        )


def quantize(encoder: Encoder, reference: Reference, calibration: list[Sequence]) -> tuple[Encoder, list[str]]:
    """Quantise the linear layers of an encoder's blocks; keep in float32 the fewest layers that the tolerance requires.

    If a cosine falls below the target when all layers are quantised, layers are ranked by the mean cosine that each one
    causes when it alone is quantised. A bisection over this ranking finds the fewest layers to leave in float32. The
    ranking runs the encoder once per layer, on short sequences. The bisection runs it log2(layers) times, on all
    sequences.

    Args:
        encoder: the encoder in float32, as exported.
        reference: PyTorch's float32 outputs.
        calibration: sequences like those to be encoded; they show how large the input channels of each layer are.

    Returns:
        The encoder in int8, which shares its other weights with `encoder`, and the names of the layers in float32.
    """
    linears = _quantized_linears(encoder, calibration)

    def quantize_except(float32_layers: list[str]) -> Encoder:
        return _with_modules(encoder, {name: linear for name, linear in linears.items() if name not in float32_layers})

    def meets_target(float32_layers: list[str]) -> bool:
        measured = measure_encoder(quantize_except(float32_layers), reference)
        return measured.min_cosine >= _TARGET_COSINE and measured.hidden_min_cosine >= _HIDDEN_TARGET_COSINE

    if meets_target([]):
        return quantize_except([]), []
    short = reference.short_sequences()
    cosines = {
        name: measure_encoder(_with_modules(encoder, {name: linear}), short).mean_cosine
        for name, linear in linears.items()
    }
    worst_first = sorted(linears, key=cosines.__getitem__)
    # The count `len(linears)` needs no test: with all layers in float32 the target is always met.
    fewest = 1 + bisect_left(range(1, len(linears)), True, key=lambda count: meets_target(worst_first[:count]))
    return quantize_except(worst_first[:fewest]), sorted(worst_first[:fewest])


def _quantized_linears(encoder: Encoder, calibration: list[Sequence]) -> dict[str, nn.Module]:
    """Return an int8 copy of each linear layer of the blocks, by name, with factors from the calibration."""
    # Not the routers, which are subclasses: rounded scores would choose other experts.
    linears = {
        name: module for name, module in encoder.layers.named_modules(prefix="layers") if type(module) is nn.Linear
    }
    inputs = _input_rms(linears, encoder, calibration)
    same_input = defaultdict(list)
    for name in linears:
        # Queries, keys and values read the same rows, and so do both layers of a gated feed-forward block. With equal
        # factors, the graph quantises these rows once.
        block, _, kind = name.rpartition(".")
        same_input[block if kind in ("query", "key", "value", "gate", "up") else name].append(name)
    quantized: dict[str, nn.Module] = {}
    for names in same_input.values():
        weights = torch.cat([linears[name].weight.detach() for name in names]).abs().amax(0)
        factors = weights ** (1 - _SMOOTHING) / inputs[names[0]] ** _SMOOTHING
        # A channel that is always zero needs no factor.
        factors = torch.where(factors.isfinite() & (factors > 0), factors, 1.0)
        quantized.update({name: QuantizedLinear(linears[name], factors) for name in names})
    return quantized


def _input_rms(linears: Mapping[str, nn.Linear], encoder: Encoder, calibration: list[Sequence]) -> dict[str, Tensor]:
    """Return the root mean square of each linear layer's input channels, [d_in], over the calibration sequences."""
    squares = {name: torch.zeros(linear.in_features) for name, linear in linears.items()}

    def add(name: str, _: nn.Module, inputs: tuple[Tensor]) -> None:
        squares[name] += inputs[0].square().sum(0)

    hooks = [linear.register_forward_pre_hook(partial(add, name)) for name, linear in linears.items()]
    try:
        run_in_pytorch(encoder, calibration)
    finally:
        for hook in hooks:
            hook.remove()
    rows = sum(map(len, calibration))
    return {name: (total / rows).sqrt() for name, total in squares.items()}


def _with_modules(encoder: Encoder, modules: Mapping[str, nn.Module]) -> Encoder:
    """Return a copy of an encoder with these modules in place of its own; the copy shares all other weights."""
    shared = {id(tensor): tensor for tensor in (*encoder.parameters(), *encoder.buffers())}
    replaced = copy.deepcopy(encoder, shared)
    for name, module in modules.items():
        replaced.set_submodule(name, module)
    return replaced
