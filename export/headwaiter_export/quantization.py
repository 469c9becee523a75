"""Linear layers in int8, and which of them an encoder can afford."""

import copy
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headwaiter_export.encoder import Encoder
from headwaiter_export.parity import Reference, Sequence, answer, compare

# Half of what the contract allows: other processors round otherwise, and other inputs are less kind.
TARGET_COSINE = 0.995
# Integers are symmetric: −127 to 127.
_LARGEST = 127
# Activations are stored from 1 to 255: ONNX Runtime's fast kernels multiply unsigned rows by signed weights.
_ZERO_POINT = 128
# Stands for the largest value of a row of zeros, whose scale would be zero; its inverse is still finite.
_SMALLEST = 1e-30
# How much of the spread of the input channels goes into the weights: all at 1, nothing at 0.
_SMOOTHING = 0.8


class QuantizedLinear(nn.Module):
    """A linear layer whose product is computed in integers: y_rj = s_r · w_j · Σ_i q_ri · W_ij + b_j.

    Every output channel j of the weights has a scale w_j of its own, and every row r of the input, which is one
    token, has its own s_r = max_i |x_ri · f_i| / 127: what stands in other rows never changes a row's result. q and W
    are x · f and the weights by f, divided by their scales and rounded to the nearest integer, half to even. The
    factors f make the input channels alike in size, or a few large ones would leave the others few integers to be
    told apart by (https://arxiv.org/abs/2211.10438).

    Args:
        linear: in float32.
        factors: what each input channel is multiplied by, [d_in].
    """

    weight: Tensor

    def __init__(self, linear: nn.Linear, factors: Tensor) -> None:
        super().__init__()
        weight = linear.weight.detach() / factors
        scales = weight.abs().amax(1).clamp(min=_SMALLEST) / _LARGEST
        self.factors = nn.Parameter(factors, requires_grad=False)
        # A buffer, as an encoder's parameters tell in which floating-point type it computes.
        self.register_buffer("weight", (weight / scales[:, None]).round().to(torch.int8).T.contiguous())
        self.weight_scales = nn.Parameter(scales, requires_grad=False)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """Transform rows [R, d_in] to [R, d_out], one by one."""
        x = x * self.factors
        # A maximum, as a clamp would make an infinity finite.
        largest = torch.maximum(x.abs().amax(1, keepdim=True), torch.tensor(_SMALLEST))
        scaled = x * (_LARGEST / largest)
        product = self._product_in_graph(scaled) if torch.onnx.is_in_onnx_export() else self._product(scaled)
        y = product * (largest * (1 / _LARGEST))
        return y if self.bias is None else y + self.bias

    def _product(self, scaled: Tensor) -> Tensor:
        return F.linear(scaled.round(), self.weight.T.float()) * self.weight_scales

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
    """Quantise the linear layers of an encoder's blocks, but for those that would take it too far from the reference.

    Where all of them together do, they are ranked by the damage that each does alone, and the fewest of the worst that
    bring every cosine back to `TARGET_COSINE` stay in float32. That takes a short pass for each layer, and a whole pass
    for each of the log2(layers) steps of a bisection.

    Args:
        encoder: in float32, as it is exported.
        reference: what its answers are held to.
        calibration: sequences as the model will meet them, from which it is learned how large each channel gets.

    Returns:
        The encoder in int8, which shares its other weights with the one in float32, and the names of the linear layers
        that stay in float32.
    """
    linears = _quantized_linears(encoder, calibration)

    def without(kept: list[str]) -> Encoder:
        return _replace(encoder, {name: linear for name, linear in linears.items() if name not in kept})

    def is_near(kept: list[str]) -> bool:
        return compare(without(kept), reference).min_cosine >= TARGET_COSINE

    if is_near([]):
        return without([]), []
    shorter = reference.shorter()
    cosines = {
        name: compare(_replace(encoder, {name: linear}), shorter).mean_cosine for name, linear in linears.items()
    }
    worst_first = sorted(linears, key=cosines.__getitem__)
    # With all of them in float32, which is the end of the range, nothing is left to differ.
    fewest = 1 + bisect_left(range(1, len(linears)), True, key=lambda count: is_near(worst_first[:count]))
    return without(worst_first[:fewest]), sorted(worst_first[:fewest])


def _quantized_linears(encoder: Encoder, calibration: list[Sequence]) -> dict[str, nn.Module]:
    """Quantise every linear layer of the blocks, with factors from the inputs that it sees in the calibration."""
    linears = {
        name: module for name, module in encoder.layers.named_modules(prefix="layers") if isinstance(module, nn.Linear)
    }
    inputs = _input_sizes(linears, encoder, calibration)
    readers = defaultdict(list)
    for name in linears:
        # Queries, keys and values read the same rows: with the same factors, they are quantised once for all three.
        layer, _, kind = name.rpartition(".")
        readers[layer if kind in ("query", "key", "value") else name].append(name)
    quantized: dict[str, nn.Module] = {}
    for names in readers.values():
        weights = torch.cat([linears[name].weight.detach() for name in names]).abs().amax(0)
        factors = weights ** (1 - _SMOOTHING) / inputs[names[0]] ** _SMOOTHING
        # A channel that is never used has no size to be brought to.
        factors = torch.where(factors.isfinite() & (factors > 0), factors, 1.0)
        quantized.update({name: QuantizedLinear(linears[name], factors) for name in names})
    return quantized


def _input_sizes(linears: Mapping[str, nn.Linear], encoder: Encoder, calibration: list[Sequence]) -> dict[str, Tensor]:
    """Return the root mean square of each input channel of each linear layer, [d_in], over some sequences."""
    squares = {name: torch.zeros(linear.in_features) for name, linear in linears.items()}

    def add(name: str, _: nn.Module, inputs: tuple[Tensor]) -> None:
        squares[name] += inputs[0].square().sum(0)

    hooks = [linear.register_forward_pre_hook(partial(add, name)) for name, linear in linears.items()]
    try:
        answer(encoder, calibration)
    finally:
        for hook in hooks:
            hook.remove()
    rows = sum(map(len, calibration))
    return {name: (total / rows).sqrt() for name, total in squares.items()}


def _replace(encoder: Encoder, modules: Mapping[str, nn.Module]) -> Encoder:
    """Return an encoder with some modules replaced; it shares its weights with the other."""
    shared = {id(tensor): tensor for tensor in (*encoder.parameters(), *encoder.buffers())}
    replaced = copy.deepcopy(encoder, shared)
    for name, module in modules.items():
        replaced.set_submodule(name, module)
    return replaced
