"""Measure what each attention layer of a module adds to its scores.

Between the product of queries and keys and the softmax, a module may scale the product, and add masks and biases.
`find_attentions` runs the module with made-up products, so it sees exactly what is added to them.

Shapes: n rows of one sequence, H heads.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves
from typing_extensions import override

from headwaiter_export.encoder.found_attention import READS, SDPA, AttentionMode, NotPackableError, caller, place
from headwaiter_export.encoder.measured_terms import AddedNumbers
from headwaiter_export.encoder.score_terms import ScoreTerms

# Functions that tell the code about the values of a tensor.
_TELLS = (*READS, Tensor.__contains__, Tensor.tolist, Tensor.numpy, Tensor.equal, torch.equal, torch.allclose)
# Functions whose results do not depend on the values of a tensor.
_OF_SHAPE = (torch.ones_like, torch.zeros_like, torch.full_like, torch.empty_like, Tensor.new_ones, Tensor.new_zeros)
# transformers looks for padding to warn of it, and computes the same without a warning.
_WARNINGS = ("transformers", "modeling_utils.py")
# Made-up products of queries and keys, of the first and of the last head.
_PRODUCTS = (32.0, 64.0)
# Largest relative difference between two measurements of the factor of products.
_FACTOR_ERROR = 1e-3
# Largest rounding error of a factor.
_ROUNDING = 1e-5


def mark_content(tensor: Tensor) -> Tensor:
    """Mark a tensor of the content of a sequence: no branch of a module may depend on its values."""
    tensor.is_of_content = True  # type: ignore[attr-defined]
    return tensor


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
        added: what is added to the products.
        terms: the same, as a layout takes it: one object for all layers that add the same.
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
        run: runs the module on one of the sequences, which it marks by `mark_content`.
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
        same = (each.terms for each in layers if each.added.is_same(layer.added))
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
    """One attention layer in one run.

    Attributes:
        product: the made-up product of queries and keys in each head, [H].
        factor: what multiplies products; None if it is unknown, and `scores` are what the softmax took.
        scores: what the softmax took, or, if the factor is known, what is added to products.
    """

    place: str
    heads: int
    head_dim: int
    value_dim: int
    product: Tensor
    factor: float | None
    scores: AddedNumbers


def _combined(first: _Seen, *others: _Seen) -> FoundAttention:
    """Combine the measurements of one layer; the products of the first one were 0, so its scores were added to them."""
    added, factors = first.scores, []
    for other in others:
        products = torch.zeros(1, 1)
        if first.factor is None:
            numbers, allowed = added.shortened(other.scores.tokens).numbers, other.scores.allowed
            # The smallest number that is added has the smallest rounding error.
            least = numbers.abs().masked_fill(~allowed, torch.inf).argmin(1, keepdim=True)
            products = (other.scores.numbers - numbers).gather(1, least)
            factors.append(products[:, 0] / other.product)
        changed = AddedNumbers(other.scores.allowed, other.scores.numbers - products * other.scores.allowed)
        if not changed.equals(added, scale=float(products.abs().amax())):
            raise NotPackableError(
                first.place, "the mask or the bias of this attention depends on the content or the length of a sequence"
            )
    factor = torch.tensor([first.factor]) if first.factor is not None else factors[0]
    if factors and not torch.allclose(factors[0], factors[1], rtol=_FACTOR_ERROR):
        raise NotPackableError(
            first.place, "something else than a factor and numbers to add lies between the products and the softmax"
        )
    factor = factor * math.sqrt(first.head_dim)
    query_factor: Tensor | float | None = factor[:, None, None]
    if torch.allclose(factor, factor[0], rtol=_ROUNDING):
        query_factor = None if abs(factor[0] - 1) < _ROUNDING else float(factor[0])
    sizes = first.heads, first.head_dim, first.value_dim
    return FoundAttention(first.place, *sizes, query_factor, added, added.terms())


class _Observe(AttentionMode):
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
    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        of_content = any(hasattr(each, "is_of_content") for each in tree_leaves((args, kwargs)))
        if of_content and func in _TELLS and Path(caller()[0]).parts[-2:] != _WARNINGS:
            raise NotPackableError(
                place(), "the content of a sequence decides what this code does, and a graph computes the same for all"
            )
        result = super().__torch_function__(func, types, args, kwargs)
        if of_content and func not in _OF_SHAPE:
            for each in tree_leaves((result, args[:1] if func is Tensor.__setitem__ else ())):
                if isinstance(each, Tensor):
                    mark_content(each)
        return result

    @override
    def attention(self, query: Tensor, key: Tensor, value: Tensor, choices: dict[str, Any]) -> Tensor:
        n, mask, scale = self.tokens, choices["attn_mask"], choices["scale"]
        added: AddedNumbers | None
        if choices["is_causal"] or mask is None:
            added = AddedNumbers.of_distances(n, is_causal=choices["is_causal"])
        else:
            pairs = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else mask.float()
            added = AddedNumbers.measured(pairs.expand(*pairs.shape[:-2], n, n).reshape(-1, n, n))
        self._add(query, value, added, torch.zeros(1), query.shape[-1] ** -0.5 if scale is None else scale)
        context: Tensor = SDPA(**choices)
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
        self._add(query, value, AddedNumbers.measured(self._scores), self._product, None)
        return left @ value

    def _add(
        self, query: Tensor, value: Tensor, added: AddedNumbers | None, product: Tensor, factor: float | None
    ) -> None:
        if added is None:
            raise NotPackableError(
                self.place,
                "the mask or the bias of this attention depends on the content, or on more than the distance of two "
                "rows",
            )
        heads = len(product) if factor is None else math.prod(query.shape[:-2])
        sizes = heads, query.shape[-1], value.shape[-1]
        self.seen.append(_Seen(self.place, *sizes, product, factor, added))

    @override
    def other(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        if func in READS and self.reads.setdefault(caller(), result) != result:
            raise NotPackableError(
                place(), "a tensor decides what this code does, and it depends on the content or the length"
            )
        if func is F.linear:
            self.widest = max(self.widest, result.shape[-1])
        return result
