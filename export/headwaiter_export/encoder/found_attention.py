"""Find the attention layers of a module while it runs, measure what they add to scores, and let a layout compute them.

An attention layer is a call of `F.scaled_dot_product_attention`, or a product of queries and keys, a softmax, and a
product of its result with values. The classes are modes of PyTorch: each function that a module calls goes through
`__torch_function__`.

Between the product and the softmax, a module may scale the product, and add masks and biases. `find_attentions` runs
the module with made-up products, so it sees exactly what is added to them. Shapes: n rows of one sequence, H heads.
"""

import inspect
import math
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from headwaiter_export.encoder.attention_layout import AttentionLayout
from headwaiter_export.encoder.measured_terms import AddedNumbers
from headwaiter_export.encoder.score_terms import ScoreTerms

# Made-up products of queries and keys, of the first and of the last head.
_PRODUCTS = (32.0, 64.0)
# Largest relative difference between two measurements of the factor of products.
_FACTOR_ERROR = 1e-3
# Largest rounding error of a factor.
_ROUNDING = 1e-5
_PACKAGES = str(Path(torch.__file__).parent), str(Path(__file__).parents[1])
_SDPA = F.scaled_dot_product_attention
_SDPA_SIGNATURE = inspect.signature(
    lambda query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False: None
)
_SOFTMAX = (F.softmax, torch.softmax, Tensor.softmax)
_MATMUL = (torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm)
# Functions that turn a tensor into a number of Python.
_READS = (Tensor.__bool__, Tensor.item, Tensor.__int__, Tensor.__float__, Tensor.__index__)


class NotPackableError(ValueError):
    """A module cannot run on packed rows; the message says where in its code and why."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"{place}: {reason}" if place else reason)


@dataclass(frozen=True, eq=False)
class FoundAttention:
    """One attention layer of a module.

    Attributes:
        place: file and line of the caller's code.
        heads: H.
        head_dim: width of a head's queries and keys.
        value_dim: width of a head's values.
        query_factor: what multiplies queries before a layout divides products by √head_dim, a number or [H, 1, 1]; None
            for 1.
        added: what is added to them.
        terms: the same, as a layout takes it; equal in layers that add the same.
    """

    place: str
    heads: int
    head_dim: int
    value_dim: int
    query_factor: Tensor | float | None
    added: AddedNumbers
    terms: ScoreTerms


@dataclass(eq=False)
class Attentions:
    """What `find_attentions` found in a module.

    Attributes:
        layers: in the order of their computation.
        reads: for each place in the code that turns a tensor into a number of Python, the number.
        widest: the largest number of values of a row in a result of a linear layer.
    """

    layers: list[FoundAttention]
    reads: dict[tuple[str, int], object]
    widest: int


def find_attentions(run: Callable[[Any], object], sequences: Sequence[Any]) -> Attentions:
    """Run a module on several sequences of different content and lengths, and measure its attention layers.

    Args:
        run: runs the module on one of the sequences.
        sequences: three sequences; the first one has the maximum length.

    Raises:
        NotPackableError: an attention layer, or control flow, depends on the content or on the length.
    """
    reads: dict[tuple[str, int], object] = {}
    # A cap, or heads that are mixed, would not multiply all of these products by the same factor.
    probes = [(0.0, 0.0), _PRODUCTS, (-_PRODUCTS[1], -_PRODUCTS[0])]
    modes = [_Observe(len(each), ends, reads) for each, ends in zip(sequences, probes, strict=True)]
    for mode, sequence in zip(modes, sequences, strict=True):
        with torch.inference_mode(), mode:
            run(sequence)
    if len({len(mode.seen) for mode in modes}) > 1:
        raise NotPackableError("", "the number of attention layers depends on the content or the length of a sequence")
    layers: list[FoundAttention] = []
    for seen in zip(*(mode.seen for mode in modes), strict=True):
        layer = _combined(*seen)
        same = (each.terms for each in layers if each.added.equals(layer.added))
        layers.append(replace(layer, terms=next(same, layer.terms)))
    if not layers:
        raise NotPackableError(
            "",
            "the module has no attention that the export knows: scaled_dot_product_attention, or two products around "
            "a softmax",
        )
    return Attentions(layers, reads, max(mode.widest for mode in modes))


@dataclass(frozen=True, eq=False)
class _Seen:
    """One attention layer in one run, whose products were `product` [H], or, if `factor` is known, not changed."""

    place: str
    heads: int
    head_dim: int
    value_dim: int
    product: Tensor
    factor: float | None
    scores: AddedNumbers


def _combined(zeros: _Seen, one: _Seen, two: _Seen) -> FoundAttention:
    """Combine the measurements of one layer; those of `zeros` are what is added to products."""
    added, factors = zeros.scores, []
    for other in (one, two):
        if zeros.factor is not None:
            factors.append(torch.tensor([zeros.factor]))
            products = torch.zeros(1, 1)
        else:
            shorter = other.scores.tokens
            numbers = added._shortened(shorter).numbers  # noqa: SLF001
            # The number that is added at this distance is the smallest, and has the smallest rounding error.
            numbers = numbers.expand(zeros.heads, -1)
            least = numbers.abs().masked_fill(~other.scores.allowed, torch.inf).argmin(1, keepdim=True)
            products = (other.scores.numbers - numbers).gather(1, least)
            factors.append(products[:, 0] / other.product)
            products = products * other.scores.allowed
        if not AddedNumbers(other.scores.allowed, other.scores.numbers - products).equals(added):
            raise NotPackableError(
                zeros.place, "the mask or the bias of this attention depends on the content or the length of a sequence"
            )
    if not torch.allclose(factors[0], factors[1], rtol=_FACTOR_ERROR):
        raise NotPackableError(
            zeros.place, "something else than a factor and numbers to add lies between the products and the softmax"
        )
    factor = factors[0] * math.sqrt(zeros.head_dim)
    query_factor: Tensor | float | None = factor[:, None, None]
    if torch.allclose(factor, factor[0], rtol=_ROUNDING):
        query_factor = None if abs(factor[0] - 1) < _ROUNDING else float(factor[0])
    sizes = zeros.heads, zeros.head_dim, zeros.value_dim
    return FoundAttention(zeros.place, *sizes, query_factor, added, added.terms())


class _Attention(TorchFunctionMode):
    """Follow the attention layers of a module; `length` is n, a number or a symbol."""

    def __init__(self, length: int | torch.SymInt, reads: dict[tuple[str, int], object]) -> None:
        super().__init__()
        self.length = length
        self.reads = reads
        # The queries and keys of a product that a softmax may follow; then the same with the weights.
        self.product: tuple[Tensor, Tensor] | None = None
        self.weights: tuple[Tensor, Tensor, Tensor] | None = None
        self.place = ""

    def attention(self, query: Tensor, key: Tensor, value: Tensor, choices: dict[str, Any]) -> Tensor:
        """Compute or observe a call of `scaled_dot_product_attention`; keys have the shape [..., n, head_dim]."""
        raise NotImplementedError

    def between(self, product: Tensor) -> Tensor:
        """Return what takes the place of a product of queries and keys."""
        return product

    def context(self, left: Tensor, value: Tensor) -> Tensor:
        """Compute or observe the product of weights with values."""
        raise NotImplementedError

    def other(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute another function."""
        return func(*args, **kwargs)

    @override
    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is _SDPA:
            return self._sdpa(*args, **kwargs)
        if func is F.multi_head_attention_forward:
            # This function computes outside the mode, but finds `scaled_dot_product_attention` in its module.
            F.scaled_dot_product_attention = self._sdpa
            try:
                return func(*args, **{**kwargs, "need_weights": False})
            finally:
                F.scaled_dot_product_attention = _SDPA
        if func in _SOFTMAX and self.product is not None and self.is_square(args[0]):
            return self._softmax(func, args, kwargs)
        factors = _factors(func, args, kwargs)
        if factors is None:
            return self.other(func, args, kwargs)
        left, right, arrange = factors
        if self.weights is not None and self.is_square(left) and self.is_length(right.shape[-2]):
            context = self.context(left, right)
            self.weights = None
            return arrange(context)
        if left.ndim != right.ndim or not (self.is_length(left.shape[-2]) and self.is_length(right.shape[-1])):
            return self.other(func, args, kwargs)
        self.end()
        self.place = place()
        self.product = left, right.transpose(-2, -1)
        return arrange(self.between(left @ right))

    def end(self) -> None:
        """Check that nothing is left of an attention layer."""

    def _sdpa(self, *args: Any, **kwargs: Any) -> Tensor:
        bound = _SDPA_SIGNATURE.bind(*args, **kwargs)
        bound.apply_defaults()
        query, key, value, *_ = bound.args
        if not self.is_length(query.shape[-2]) or not self.is_length(key.shape[-2]):
            raise NotPackableError(
                place(), "the queries or the keys of this attention are not the rows of the sequence"
            )
        self.place = place()
        return self.attention(query, key, value, bound.arguments)

    def _softmax(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        scores: Tensor = args[0]
        weights = func(*args, **kwargs)
        assert self.product is not None
        self.weights = *self.product, weights
        self.product = None
        self.softmax(scores)
        return weights

    def softmax(self, scores: Tensor) -> None:
        """Observe the scores of an attention layer."""

    def is_length(self, size: Any) -> bool:
        """Return whether a size is n."""
        return bool(statically_known_true(size == self.length))

    def is_square(self, x: Tensor) -> bool:
        """Return whether a tensor has a number for each pair of rows."""
        return x.ndim >= 2 and self.is_length(x.shape[-1]) and self.is_length(x.shape[-2])


class _Observe(_Attention):
    """Measure what attention layers add to made-up products of queries and keys, from `ends[0]` to `ends[1]`."""

    def __init__(self, length: int, ends: tuple[float, float], reads: dict[tuple[str, int], object]) -> None:
        super().__init__(length, reads)
        self.tokens = length
        self.ends = ends
        self.seen: list[_Seen] = []
        self.widest = 0
        self._scores = torch.zeros(())
        self._product = torch.zeros(())

    @override
    def attention(self, query: Tensor, key: Tensor, value: Tensor, choices: dict[str, Any]) -> Tensor:
        n, mask = self.tokens, choices["attn_mask"]
        added = torch.zeros(1, n, n)
        if choices["is_causal"]:
            added = added.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -torch.inf)
        elif mask is not None and mask.dtype == torch.bool:
            added = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
        elif mask is not None:
            added = mask.float()
        added = added.expand(*added.shape[:-2], n, n).reshape(-1, n, n)
        scale = choices["scale"]
        self._add(query, value, added, torch.zeros(1), query.shape[-1] ** -0.5 if scale is None else scale)
        context: Tensor = _SDPA(**choices)
        return context

    @override
    def between(self, product: Tensor) -> Tensor:
        heads = math.prod(product.shape[:-2])
        self._product = torch.linspace(*self.ends, heads)
        return self._product.to(product.dtype).view(*product.shape[:-2], 1, 1).expand(product.shape).clone()

    @override
    def softmax(self, scores: Tensor) -> None:
        self._scores = scores.reshape(-1, self.tokens, self.tokens)

    @override
    def context(self, left: Tensor, value: Tensor) -> Tensor:
        assert self.weights is not None
        query, _, weights = self.weights
        if not torch.allclose(left.float(), weights.reshape(left.shape).float(), atol=1e-6):
            raise NotPackableError(place(), "the weights of this attention are changed after the softmax")
        self._add(query, value, self._scores, self._product, None)
        return left @ value

    def _add(self, query: Tensor, value: Tensor, scores: Tensor, product: Tensor, factor: float | None) -> None:
        measured = AddedNumbers.measured(scores)
        if measured is None:
            raise NotPackableError(
                self.place,
                "the mask or the bias of this attention depends on the content, or on more than the distance of two "
                "rows",
            )
        heads = len(product) if factor is None else math.prod(query.shape[:-2])
        sizes = heads, query.shape[-1], value.shape[-1]
        self.seen.append(_Seen(self.place, *sizes, product, factor, measured))

    @override
    def other(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        if func in _READS and self.reads.setdefault(_caller(), result) != result:
            raise NotPackableError(
                place(), "a tensor decides what this code does, and it depends on the content or the length"
            )
        if func is F.linear:
            self.widest = max(self.widest, result.shape[-1])
        return result


class PackedRows(_Attention):
    """Let a layout compute the attention layers of a module that runs on the rows of a packed batch, as one sequence.

    What a module computes from the numbers 0 to n − 1 is computed from the position of each row in its own sequence.
    """

    def __init__(self, found: Attentions, layout: AttentionLayout, rows: Any) -> None:
        super().__init__(rows, found.reads)
        self.layout = layout
        self._rows = rows
        self._layers = iter(found.layers)

    @override
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._rows.node.expr.is_number:
            raise NotPackableError(place(), "here or just before, the number of rows becomes a constant")
        return super().__torch_function__(func, types, args, kwargs)

    @override
    def attention(self, query: Tensor, key: Tensor, value: Tensor, choices: dict[str, Any]) -> Tensor:
        groups = query.shape[-3] // key.shape[-3] if choices["enable_gqa"] else 1
        if groups > 1:
            key, value = (each.repeat_interleave(groups, -3) for each in (key, value))
        return self._attend(query, key, value)

    @override
    def context(self, left: Tensor, value: Tensor) -> Tensor:
        assert self.weights is not None
        query, key, _ = self.weights
        return self._attend(query, key, value)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Compute the context [..., n, value_dim] of queries, keys and values of heads [..., n, width]."""
        found = next(self._layers, None)
        lead = torch.broadcast_shapes(*(each.shape[:-2] for each in (query, key, value)))  # type: ignore[no-untyped-call]
        if found is None or math.prod(lead) != found.heads:
            raise NotPackableError(self.place, "this attention was not there when the module ran on one sequence")
        if found.query_factor is not None:
            query = query * found.query_factor
        q, k, v = (self._to_rows(each.expand(*lead, *each.shape[-2:])) for each in (query, key, value))
        context = self.layout.attend(q, k, v, found.heads, found.terms)
        by_head = context.reshape(1, -1, found.heads, found.value_dim).transpose(1, 2)
        return by_head.reshape(*lead, *by_head.shape[-2:])

    def _to_rows(self, heads: Tensor) -> Tensor:
        """Turn heads [..., n, width] into rows [n, H · width]."""
        # With four dimensions, transpositions of modules and this one cancel each other.
        four = heads.reshape(1, -1, *heads.shape[-2:])
        return four.transpose(1, 2).reshape(-1, four.shape[1] * four.shape[3]).contiguous()

    @override
    def end(self) -> None:
        if self.product is not None:
            raise NotPackableError(self.place, "this product of all rows with all rows is not followed by a softmax")

    def finish(self) -> None:
        """Check that all layers were computed."""
        self.end()
        if left := next(self._layers, None):
            raise NotPackableError(left.place, "this attention was there only when the module ran on one sequence")

    @override
    def other(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func in _READS and (caller := _caller()) in self.reads:
            return self.reads[caller]
        if func is F.linear and args[0].ndim == 3 and args[0].shape[0] == 1:
            # Traced to Gemm, which adds the bias.
            return func(args[0].squeeze(0), *args[1:], **kwargs).unsqueeze(0)
        if func is F.layer_norm and args[0].ndim == 3 and args[0].shape[0] == 1:
            # ONNX Runtime would fuse norms of three dimensions with the sum before them, which is slow on CPUs.
            return func(args[0].squeeze(0), *args[1:], **kwargs).unsqueeze(0)
        if func is torch.arange:
            return self._arange(func, args, kwargs)
        if func is Tensor.__getitem__:
            return self._first_rows(func, *args)
        if func in (torch.cumsum, Tensor.cumsum):
            return self._cumsum(func, args, kwargs)
        return func(*args, **kwargs)

    def _arange(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return positions + a for arange(a, a + n)."""
        start, end = (0, *args) if len(args) == 1 else args[:2] if len(args) == 2 else (0, 0)
        if not self.is_length(end - start):
            return func(*args, **kwargs)
        positions = self.layout.positions + start if start else self.layout.positions
        return positions.to(kwargs.get("dtype") or torch.int64)

    def _first_rows(self, func: Callable[..., Any], x: Tensor, index: Any) -> Any:
        """Return the rows of a constant at the positions, for its first n rows: x[:n] or x[:, :n]."""
        parts = index if isinstance(index, tuple) else (index,)
        plain = all(isinstance(each, int | slice) or each is None for each in parts)
        cuts = [i for i, each in enumerate(parts) if isinstance(each, slice) and self._is_cut(each)]
        if not plain or len(cuts) != 1:
            return func(x, index)
        (cut,) = cuts
        sizes = sum(each is not None for each in parts[:cut])
        if self.is_length(x.shape[sizes]):
            return func(x, index)
        dim = sum(not isinstance(each, int) for each in parts[:cut])
        whole = func(x, (*parts[:cut], slice(None), *parts[cut + 1 :]))
        return whole.index_select(dim, self.layout.positions)

    def _is_cut(self, part: slice) -> bool:
        return part.start in (None, 0) and part.step in (None, 1) and self.is_length(part.stop)

    def _cumsum(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Sum whole numbers over the rows of each sequence alone."""
        result = func(*args, **kwargs)
        dim = kwargs["dim"] if "dim" in kwargs else args[1]
        if result.is_floating_point() or not self.is_length(result.shape[dim]):
            return result
        positions = self.layout.positions
        first = torch.arange(positions.shape[0]) - positions
        before = result - args[0].to(result.dtype)
        return result - before.index_select(dim, first)


def _factors(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Tensor, Tensor, Callable[[Tensor], Tensor]] | None:
    """Return the factors [..., i, d] and [..., d, j] of a product, and how to arrange their product [..., i, j]."""
    if func in _MATMUL and len(args) == 2 and not kwargs and min(each.ndim for each in args) > 1:
        return *args, lambda product: product
    if func is not torch.einsum or len(args) != 3 or not isinstance(args[0], str) or "." in args[0]:
        return None
    inputs, _, output = args[0].replace(" ", "").partition("->")
    one, _, two = inputs.partition(",")
    shared = [c for c in one if c in two]
    lead, summed = [c for c in shared if c in output], [c for c in shared if c not in output]
    rows, columns = [c for c in output if c not in two], [c for c in output if c not in one]
    if len(summed) != 1 or len(rows) != 1 or len(columns) != 1:
        return None
    left = args[1].permute(*map(one.index, lead + rows + summed))
    right = args[2].permute(*map(two.index, lead + summed + columns))
    order = [(lead + rows + columns).index(c) for c in output]
    return left, right, lambda product: product.permute(*order)


def place(error: Exception | None = None) -> str:
    """Return the file and the line of the innermost code that belongs neither to PyTorch nor to the export.

    Without an error, this is the code that runs now.
    """
    if error is None:
        frames = [*traceback.walk_stack(sys._getframe(1))]  # noqa: SLF001 - `inspect.stack` would read files
    else:
        frames = [*traceback.walk_tb(error.__traceback__)][::-1]
    for frame, line in frames:
        if not frame.f_code.co_filename.startswith((*_PACKAGES, "<")):
            return f"{frame.f_code.co_filename}:{line}"
    return ""


def _caller() -> tuple[str, int]:
    """Return the file and the line of the code that called a function, also if it belongs to PyTorch."""
    frame = sys._getframe(1)  # noqa: SLF001
    own = (__file__, sys.modules["torch.overrides"].__file__, sys.modules["torch._tensor"].__file__)
    while frame.f_back is not None and frame.f_code.co_filename in own:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno
