"""Find the attention layers of a module of the caller while it runs.

An attention layer is a call of `F.scaled_dot_product_attention`, or a product of queries and keys, a softmax, and a
product of its result with values. `AttentionMode` is a mode of PyTorch: each function that the module calls goes
through `__torch_function__`. `measured_attention.py` measures the layers, `packed_rows.py` replaces them.

Shapes: n rows of one sequence.
"""

import inspect
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.overrides import TorchFunctionMode
from typing_extensions import override

SDPA = F.scaled_dot_product_attention
# Functions that turn a tensor into a number of Python.
READS = (Tensor.__bool__, Tensor.item, Tensor.__int__, Tensor.__float__, Tensor.__index__)
_SDPA_SIGNATURE = inspect.signature(
    lambda query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False: None
)
_SOFTMAX = (F.softmax, torch.softmax, Tensor.softmax)
_MATMUL = (torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm)
_BADDBMM = (torch.baddbmm, Tensor.baddbmm)
_BADDBMM_SIGNATURE = inspect.signature(lambda input, batch1, batch2, beta=1, alpha=1: None)  # noqa: A006
_PACKAGES = str(Path(torch.__file__).parent), str(Path(__file__).parents[1])
# The code between a function and its caller.
_WRAPPERS = (_PACKAGES[1], *(str(Path(torch.__file__).with_name(name)) for name in ("overrides.py", "_tensor.py")))


class NotPackableError(ValueError):
    """A module cannot run on packed rows, or be traced at all; the message says where in its code and why."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"{place}: {reason}" if place else reason)


class AttentionMode(TorchFunctionMode):
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
        if func is SDPA:
            return self._sdpa(*args, **kwargs)
        if func is F.multi_head_attention_forward:
            # This function computes outside the mode, but finds `scaled_dot_product_attention` in its module.
            F.scaled_dot_product_attention = self._sdpa
            try:
                return func(*args, **{**kwargs, "need_weights": False})
            finally:
                F.scaled_dot_product_attention = SDPA
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


def _factors(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Tensor, Tensor, Callable[[Tensor], Tensor]] | None:
    """Return the factors [..., i, d] and [..., d, j] of a product, and how to arrange their product [..., i, j]."""
    if func in _MATMUL and len(args) == 2 and not kwargs and min(each.ndim for each in args) > 1:
        return *args, lambda product: product
    if func in _BADDBMM:
        bound = _BADDBMM_SIGNATURE.bind(*args, **kwargs).arguments
        added, beta, alpha = bound["input"], bound.get("beta", 1), bound.get("alpha", 1)
        return bound["batch1"], bound["batch2"], lambda product: beta * added + alpha * product
    if func is not torch.einsum or len(args) != 3 or not isinstance(args[0], str) or "." in args[0]:
        return None
    inputs, _, output = args[0].replace(" ", "").partition("->")
    one, _, two = inputs.partition(",")
    shared = [c for c in one if c in two]
    lead, summed = [c for c in shared if c in output], [c for c in shared if c not in output]
    # Several heads of queries may share the keys of one head: the last letter stands for the rows.
    rows, columns = [c for c in output if c not in two], [c for c in output if c not in one]
    if len(summed) != 1 or not rows or len(columns) != 1:
        return None
    left = args[1].permute(*map(one.index, lead + rows + summed))
    right = args[2].permute(*map(two.index, lead + summed + columns))
    right = right[(slice(None),) * len(lead) + (None,) * (len(rows) - 1)]
    order = [(lead + rows + columns).index(c) for c in output]
    return left, right, lambda product: product.permute(*order)


def place(error: Exception | None = None) -> str:
    """Return the file and the line of the innermost code of the module that does not belong to PyTorch; "" without it.

    Without an error, this is the code that runs now.
    """
    if error is None:
        frames = [*traceback.walk_stack(sys._getframe(1))]  # noqa: SLF001 - `inspect.stack` would read files
    else:
        frames = [*traceback.walk_tb(error.__traceback__)][::-1]
    for frame, line in frames:
        if frame.f_code.co_name == "call_module" and frame.f_code.co_filename.startswith(_PACKAGES[1]):
            break  # What called the module is no code of it.
        if not frame.f_code.co_filename.startswith((*_PACKAGES, "<")):
            return f"{frame.f_code.co_filename}:{line}"
    return ""


def caller() -> tuple[str, int]:
    """Return the file and the line of the code that called a function, also if it belongs to PyTorch."""
    frame = sys._getframe(1)  # noqa: SLF001
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_WRAPPERS):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno
