"""Run a module of the caller on the rows of a packed batch as if they were one sequence.

Shapes: n rows of the batch.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from headwaiter_export.encoder.attention_layout import AttentionLayout
from headwaiter_export.encoder.found_attention import READS, AttentionMode, NotPackableError, caller, place
from headwaiter_export.encoder.measured_attention import Attentions


class PackedRows(AttentionMode):
    """Let a layout compute the attention layers of a module that runs on the rows of a packed batch, as one sequence.

    What a module computes from the numbers 0 to n − 1 is computed from the position of each row in its own sequence.
    """

    def __init__(self, found: Attentions, layout: AttentionLayout, rows: Any) -> None:
        super().__init__(rows, found.reads)
        if layout.positions.shape[0] != rows:
            # PyTorch's tracer learns here that both are n, and `_first_rows` that a table of positions is no constant.
            raise ValueError(f"there are {layout.positions.shape[0]} positions of {rows} rows")
        self.layout = layout
        self._rows = rows
        self._layers = iter(found.layers)
        # What the module made with `torch.ones`.
        self._ones: list[Tensor] = []

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
        # A module in float16 may rotate queries and keys in float32.
        heads = (each.to(value.dtype).expand(*lead, *each.shape[-2:]) for each in (query, key, value))
        q, k, v = map(self._to_rows, heads)
        context = self.layout.attend(q, k, v, found.heads, found.terms)
        if context.shape[0] != self._rows:
            # PyTorch's tracer learns here that both are n, and `_first_rows` that a context is no table.
            raise ValueError(f"the context has {context.shape[0]} rows, and the batch {self._rows}")
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
        if func in READS and (code := caller()) in self.reads:
            return self.reads[code]
        if func is F.linear and args[0].dtype != args[1].dtype:
            # PyTorch would refuse this product only when it computes it.
            raise NotPackableError(place(), f"this product is one of {args[0].dtype} and {args[1].dtype}")
        if func in (F.linear, F.layer_norm) and args[0].ndim == 3 and args[0].shape[0] == 1:
            # A linear layer of two dimensions is traced to Gemm, which adds the bias. And ONNX Runtime would fuse norms
            # of three dimensions with the sum before them, which is slow on CPUs.
            return func(args[0].squeeze(0), *args[1:], **kwargs).unsqueeze(0)
        if func is torch.arange:
            return self._arange(func, args, kwargs)
        if func is Tensor.__getitem__:
            return self._first_rows(func, *args)
        if func in (torch.cumsum, Tensor.cumsum):
            return self._cumsum(func, args, kwargs)
        result = func(*args, **kwargs)
        if func is torch.ones:
            self._ones.append(result)
        return result

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
        whole = (*parts[:cut], slice(None), *parts[cut + 1 :])
        if x.is_complex():
            # PyTorch's exporter selects rows of real numbers alone.
            pairs = func(torch.view_as_real(x), whole).index_select(dim, self.layout.positions)
            return torch.view_as_complex(pairs)
        return func(x, whole).index_select(dim, self.layout.positions)

    def _is_cut(self, part: slice) -> bool:
        return part.start in (None, 0) and part.step in (None, 1) and self.is_length(part.stop)

    def _cumsum(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Sum whole numbers over the rows of each sequence alone."""
        result = func(*args, **kwargs)
        dim = kwargs["dim"] if "dim" in kwargs else args[1]
        # Ones may be of any type. A sum of other floats would depend on the sequences before.
        is_whole = not result.is_floating_point() or any(args[0] is each for each in self._ones)
        if not is_whole or not self.is_length(result.shape[dim]):
            return result
        positions = self.layout.positions
        first = torch.arange(positions.shape[0]) - positions
        before = result - args[0].to(result.dtype)
        return result - before.index_select(dim, first)
