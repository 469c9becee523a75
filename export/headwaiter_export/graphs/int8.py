"""Quantise the linear layers of an encoder to int8.

`quantize` makes the encoder from which `bundle/export.py` writes the int8 graph. Linear layers become
`QuantizedLinear`, except those that must stay in float32 to keep the tolerance. Shapes: R rows; d_in and d_out are the
widths of a layer's input and output.
"""

import copy
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.encoder.activations import LOWEST
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_export.encoder.reference import Reference, Sequence, concatenate, normalize_outputs, run_in_pytorch
from headwaiter_export.graphs.graph_layout import Packed
from headwaiter_proto.rules.pooling import normalize_pooled
from headwaiter_server.runtime.graph import GraphOutputs
from headwaiter_server.runtime.numeric_tolerances import (
    Difference,
    difference,
)
from headwaiter_server.runtime.packing import TARGET, pack

AnyModule = TypeVar("AnyModule", bound=nn.Module)
# Half as far from PyTorch as the tolerance allows: other processors round differently, and other inputs may be harder.
_TARGET_COSINE = 0.995
_HIDDEN_TARGET_COSINE = 0.95
_LOGITS_TARGET = 0.05
# The share of the sentences that should keep their nearest neighbour; 95 % are promised for other sentences. A model
# with random weights cannot reach it: neighbours keep at most this share of the layers in float32.
_TARGET_NEIGHBOURS = 0.96
_MOST_FLOAT32_FOR_NEIGHBOURS = 1 / 8
# Integers are symmetric, −127 to 127, except those of rows that have a lower bound.
_MAX_INTEGER = 127
# ONNX Runtime's fast kernels multiply unsigned rows by signed weights: −127 to 127 is stored as 1 to 255.
_ZERO_POINT = 128
_MAX_UNSIGNED = 255
# Lower bound of the magnitude of a row or channel, so that the inverse of an all-zero one stays finite.
_MIN_MAGNITUDE = 1e-30
# Shares of the differences between input channels that may be moved into the weights.
_SMOOTHINGS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
# Rows of each layer for which the errors of these shares are compared, and sequences for which layers are ranked.
_COMPARED_ROWS = 1024
_RANKING_SEQUENCES = 32
_BATCH_TOKENS = 512


class QuantizedLinear(nn.Module):
    """A linear layer with an integer product: y_rj = s_r · w_j · Σ_i q_ri · W_ij + b_j.

    Output channel j has its own scale w_j. Row r of the input, which is one token, has its own scale
    s_r = max_i |x_ri · f_i| / 127, so no row changes another row's result. q is x · f divided by s, and W the weights
    divided by f and w; both are rounded to the nearest integer, half to even. The factors f bring input channels to
    similar magnitudes, because a few large channels would leave few integers for the others
    (https://arxiv.org/abs/2211.10438).

    If no value of the input is below l, q is (x − l) · f divided by s_r = max_i (x_ri − l) · f_i / 255, which uses all
    256 integers, and b_j also has l · Σ_i f_i · w_j · W_ij.

    Args:
        linear: the layer in float32.
        factors: factor of each input channel, [d_in].
        lowest: the lower bound l of the input, at most 0; None for an input without a lower bound.
    """

    weight: Tensor

    def __init__(self, linear: nn.Linear, factors: Tensor, lowest: float | None = None) -> None:
        super().__init__()
        weight = linear.weight.detach() / factors
        scales = weight.abs().amax(1).clamp(min=_MIN_MAGNITUDE) / _MAX_INTEGER
        integers = (weight / scales[:, None]).round()
        self.lowest = lowest
        self.factors = nn.Parameter(factors, requires_grad=False)
        # A buffer, because the encoder takes its floating-point type from its parameters, and this tensor is int8.
        self.register_buffer("weight", integers.to(torch.int8).T.contiguous())
        self.weight_scales = nn.Parameter(scales, requires_grad=False)
        self.bias = linear.bias
        if lowest is not None:
            shift = lowest * (integers @ factors) * scales
            self.bias = nn.Parameter(shift if linear.bias is None else linear.bias + shift, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Transform rows [R, d_in] to [R, d_out]."""
        x = (x - self.lowest if self.lowest else x) * self.factors
        most, magnitudes = (_MAX_INTEGER, x.abs()) if self.lowest is None else (_MAX_UNSIGNED, x)
        # Not `clamp(min=...)`: in a graph, it would also make infinity finite.
        largest = torch.maximum(magnitudes.amax(1, keepdim=True), torch.tensor(_MIN_MAGNITUDE))
        scaled = x * (most / largest)
        if torch.onnx.is_in_onnx_export():
            product = self._product_in_graph(scaled)
        else:
            product = F.linear(scaled.round(), self.weight.T.float()) * self.weight_scales
        y = product * (largest * (1 / most))
        return y if self.bias is None else y + self.bias

    def _product_in_graph(self, scaled: Tensor) -> Tensor:
        one = torch.tensor(1.0)
        zero_point = torch.tensor(_ZERO_POINT if self.lowest is None else 0, dtype=torch.uint8)
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


def quantize(
    encoder: Encoder,
    reference: Reference,
    calibration: list[Sequence],
    *,
    neighbours: bool = False,
    report: Callable[[str], object] = lambda line: None,
) -> tuple[Encoder, list[str]]:
    """Quantise the linear layers of an encoder's blocks; keep layers in float32 if the tolerance requires it.

    If the encoder with all layers in int8 is not close enough to float32 on the calibration and on short random
    sequences, layers are ranked by the error that each one causes, when it alone is quantised, in the rows after its
    block. Then 1, 2, 4, … layers (multiples of a 32nd of the layers), the worst first, stay in float32. So the ranking
    runs each block about eight times, on a few sequences, and the choice runs the encoder at most seven times.

    Args:
        encoder: the encoder in float32, as exported.
        reference: PyTorch's float32 outputs for random sequences.
        calibration: sequences like those to be encoded.
        neighbours: whether the calibration should keep its nearest neighbours; needs pooling.
        report: called with a line of text for each number of layers.

    Returns:
        The encoder in int8, which shares its other weights with `encoder`, and the names of the layers in float32.
    """
    batches, short = PackedBatches(encoder.config, calibration), reference.short_sequences()
    linears, worst_first, expected = _quantize_all(encoder, batches), list[str](), batches.outputs(encoder)
    step = max(1, len(linears) // 32)
    counts = [0, *(step << i for i in range(len(linears).bit_length())), len(linears)]
    for count in counts:
        if count and not worst_first:
            sample = calibration[:: -(-len(calibration) // _RANKING_SEQUENCES)]
            worst_first = _worst_first(encoder, linears, PackedBatches(encoder.config, sample))
        float32_layers = worst_first[:count]
        kept = {name: linear for name, linear in linears.items() if name not in float32_layers}
        quantized = _with_modules(encoder, kept)
        if count >= len(linears):
            break
        outputs = batches.outputs(quantized)
        measured = difference(outputs, expected)
        line = f"int8, {count} of {len(linears)} linear layers in float32: smallest cosine {measured.min_cosine:.4f}"
        if expected.logits is not None:
            line += f", logits differ by at most {measured.logits_max_abs:.2f}"
        share = 1.0
        if neighbours and expected.pooled is not None and outputs.pooled is not None:
            share = float((nearest(outputs.pooled) == nearest(expected.pooled)).mean())
            line += f", {share:.1%} of {len(calibration)} sentences keep their nearest neighbour"
        report(line)
        keeps_neighbours = share >= _TARGET_NEIGHBOURS or count >= _MOST_FLOAT32_FOR_NEIGHBOURS * len(linears)
        if keeps_neighbours and _meets_target(measured) and _meets_target(measure_encoder(quantized, short)):
            break
    return quantized, sorted(float32_layers)


def _meets_target(measured: Difference) -> bool:
    return (
        measured.min_cosine >= _TARGET_COSINE
        and measured.hidden_min_cosine >= _HIDDEN_TARGET_COSINE
        and min(measured.logits_max_abs, measured.logits_max_relative) <= _LOGITS_TARGET
    )


class PackedBatches:
    """Sequences in packed batches, which PyTorch encodes faster than one sequence after the other.

    Attributes:
        config: the configuration of the encoder.
        sequences: the sequences of each batch; longer sequences are in later batches.
        layouts: the attention layout of each batch.
        inputs: token ids or features of each batch, with token types and targets if the encoder takes them.
    """

    def __init__(self, config: EncoderConfig, sequences: list[Sequence]) -> None:
        self.config = config
        self.sequences = _batches_by_length(sequences)
        self.layouts, self.inputs = list[Packed](), list[tuple[Tensor, Tensor | None, Tensor | None]]()
        axes = Packed.input_axes(config)
        for batch in self.sequences:
            feeds = {name: torch.from_numpy(array) for name, array in pack(batch).feeds(axes).items()}
            others = (feeds.get("token_type_ids"), feeds.get(TARGET + config.token_input))
            self.inputs.append((feeds[config.token_input], *others))
            self.layouts.append(Packed(feeds))

    def stacks(self, encoder: Encoder) -> Iterator["Stack"]:
        """Yield the blocks of an encoder, then those of its decoder."""
        pairs = [(tokens, layout, types) for (tokens, types, _), layout in zip(self.inputs, self.layouts, strict=True)]
        rows = [encoder.embedding(*pair) for pair in pairs]
        yield Stack("layers", encoder.layers, rows, [(layout,) for layout in self.layouts])
        if encoder.decoder is not None:
            sources = [encoder.encode(*pair) for pair in pairs]
            layouts = [encoder.decoder.layout(layout) for layout in self.layouts]
            reads = encoder.config.decodes_rows
            read = [(tokens if target is None else target) if reads else None for tokens, _, target in self.inputs]
            rows = list(map(partial(encoder.decoder.embed, encoder.embedding.tokens), read, layouts))
            yield Stack("decoder.layers", encoder.decoder.layers, rows, list(zip(layouts, sources, strict=True)))

    @torch.no_grad()
    def outputs(self, encoder: Encoder) -> GraphOutputs:
        """Return the outputs of an encoder for all batches."""
        outputs = []
        for (tokens, types, target), layout in zip(self.inputs, self.layouts, strict=True):
            pooled, hidden, logits = encoder(tokens, layout, types, target)
            outputs.append(
                GraphOutputs(
                    None if pooled is None else pooled.numpy(),
                    hidden.numpy(),
                    None if logits is None else [logits.numpy()],
                )
            )
        return normalize_outputs(self.config, concatenate(outputs))


@dataclass(frozen=True, eq=False)
class Stack:
    """The blocks of an encoder or of a decoder.

    Attributes:
        name: name of the blocks in the encoder.
        blocks: the blocks.
        rows: the rows of each batch before the first block.
        arguments: what a block takes for each batch, besides the rows.
    """

    name: str
    blocks: nn.ModuleList
    rows: list[Tensor]
    arguments: list[tuple[Any, ...]]

    def run(self, block: nn.Module, rows: list[Tensor]) -> list[Tensor]:
        """Return the rows of each batch after a block, given those before it."""
        return [block(x, *arguments) for x, arguments in zip(rows, self.arguments, strict=True)]


def _batches_by_length(sequences: list[Sequence]) -> list[list[Sequence]]:
    """Return the sequences, sorted by length, in batches of about 512 tokens."""
    ordered = sorted(sequences, key=len)
    ends = np.cumsum([len(sequence) for sequence in ordered])
    cuts = [0, *np.flatnonzero(np.diff(ends // _BATCH_TOKENS)) + 1, len(ordered)]
    return [ordered[a:b] for a, b in itertools.pairwise(cuts)]


def measure_encoder(encoder: Encoder, reference: Reference) -> Difference:
    """Run a changed encoder, such as a quantised one, in PyTorch, and return its difference from the reference."""
    return difference(concatenate(run_in_pytorch(encoder, reference.sequences)), concatenate(reference.outputs))


def nearest(vectors: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the index of the nearest other vector by cosine of each of the vectors [n, width]."""
    vectors = normalize_pooled(vectors, normalized=True)
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -np.inf)
    nearest: NDArray[np.int64] = cosines.argmax(1)
    return nearest


class _Inputs:
    """The inputs of the linear layers of a block, collected while the block runs inside `with`."""

    def __init__(self, layer: nn.Module) -> None:
        # Not the routers and gates, which are subclasses: rounded scores would choose other experts.
        self.linears = {name: module for name, module in layer.named_modules() if type(module) is nn.Linear}
        self.rows: dict[str, list[Tensor]] = defaultdict(list)

    def __enter__(self) -> "_Inputs":
        def hook(name: str) -> Callable[[nn.Module, tuple[Tensor]], None]:
            return lambda _, inputs: self.rows[name].append(inputs[0])

        self._hooks = [linear.register_forward_pre_hook(hook(name)) for name, linear in self.linears.items()]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()


@torch.no_grad()
def _quantize_all(encoder: Encoder, batches: PackedBatches) -> dict[str, nn.Module]:
    """Return an int8 copy of each linear layer of the blocks, by name.

    The blocks run one after the other, so only the rows between two blocks are kept in memory.
    """
    quantized: dict[str, nn.Module] = {}
    for stack in batches.stacks(encoder):
        rows = stack.rows
        for number, block in enumerate(stack.blocks):
            with _Inputs(block) as inputs:
                rows = stack.run(block, rows)
            copies = _quantized_linears(inputs, LOWEST[encoder.config.activation])
            quantized.update({f"{stack.name}.{number}.{name}": linear for name, linear in copies.items()})
    return quantized


@torch.no_grad()
def _worst_first(encoder: Encoder, linears: Mapping[str, nn.Module], batches: PackedBatches) -> list[str]:
    """Rank int8 layers by the error that each one alone causes in the rows after its block."""
    errors: dict[str, float] = {}
    for stack in batches.stacks(encoder):
        rows = stack.rows
        for number, block in enumerate(stack.blocks):
            after = stack.run(block, rows)
            prefix = f"{stack.name}.{number}."
            for name in (name for name in linears if name.startswith(prefix)):
                changed = _with_modules(block, {name.removeprefix(prefix): linears[name]})
                runs = zip(stack.run(changed, rows), after, strict=True)
                errors[name] = sum(_relative_error(y, expected).sum().item() for y, expected in runs)
            rows = after
    return sorted(errors, key=errors.__getitem__, reverse=True)


def _quantized_linears(inputs: _Inputs, lowest: float) -> dict[str, nn.Module]:
    """Return an int8 copy of each linear layer of a block, with the factors that cause the smallest error."""
    same_input = defaultdict(list)
    for name in inputs.linears:
        # Queries, keys and values of self-attention read the same rows, and so do both layers of a gated feed-forward
        # block. With equal factors, the graph quantises these rows once.
        same_input[tuple(map(id, inputs.rows[name]))].append(name)
    quantized: dict[str, nn.Module] = {}
    for names in same_input.values():
        x, linears = torch.cat(inputs.rows[names[0]]), [inputs.linears[name] for name in names]
        # The rows of a wide layer take much memory: only this copy is kept, and it is overwritten below.
        for name in names:
            del inputs.rows[name]
        # The down layer reads the activation, unless a gate multiplies the activation.
        bound = lowest if names == ["feed_forward.down"] and "feed_forward.gate" not in inputs.linears else None
        compared = x[torch.linspace(0, len(x) - 1, min(len(x), _COMPARED_ROWS)).long()]
        expected, smallest = [linear(compared) for linear in linears], math.inf
        root_mean_square = x.sub_(bound or 0.0).square_().mean(0).sqrt()
        for factors in _candidate_factors(root_mean_square, linears):
            copies = [QuantizedLinear(linear, factors, bound) for linear in linears]
            pairs = zip(copies, expected, strict=True)
            error = sum(_relative_error(int8(compared), y).mean().item() for int8, y in pairs)
            if error < smallest or names[0] not in quantized:
                smallest = error
                quantized.update(zip(names, copies, strict=True))
    return quantized


def _candidate_factors(inputs: Tensor, linears: list[nn.Linear]) -> Iterable[Tensor]:
    """Return the factors of the input channels for each of `_SMOOTHINGS`, given their root mean square, [d_in] each."""
    weights = torch.cat([linear.weight.detach() for linear in linears]).abs().amax(0)
    for smoothing in _SMOOTHINGS:
        factors = weights ** (1 - smoothing) / inputs**smoothing
        # A channel that is always zero needs no factor.
        yield torch.where(factors.isfinite() & (factors > 0), factors, 1.0)


def _relative_error(actual: Tensor, expected: Tensor) -> Tensor:
    """Return the squared error of each row, divided by the squared length of the expected row, [R]."""
    lengths = expected.square().sum(1).clamp(min=_MIN_MAGNITUDE)
    return (actual - expected).square().sum(1) / lengths


def _with_modules(module: AnyModule, replacements: Mapping[str, nn.Module]) -> AnyModule:
    """Return a copy of a module with other modules in place of its own; the copy shares all other weights."""
    shared = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    replaced = copy.deepcopy(module, shared)
    for name, replacement in replacements.items():
        replaced.set_submodule(name, replacement)
    return replaced
