"""Measure the range of a model's numbers, while PyTorch computes the reference outputs in float32.

Two decisions need it. float16 holds at most 65,504, so a model with larger weights or activations cannot run in fp16.
And SkipLayerNormalization on CUDA is inexact for rows whose mean is much larger than their deviation.
`bundle/graphs.py` decides which graphs to write.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from headwaiter_export.encoder.after_pooling import FLOAT32_MODULES
from headwaiter_export.encoder.attention_layout import SingleSequence
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_export.encoder.experts import Router
from headwaiter_export.encoder.own_module import ModuleEncoder
from headwaiter_export.encoder.score_terms import ScoreTerms, cap_scores

# SkipLayerNormalization computes the variance as E[x²] − E[x]², in float32. In a simulation of its kernel (ONNX Runtime
# at commit 89b01b406, contrib_ops/cuda/bert/skip_layer_norm_impl.cu) with rows of 24 to 4,096 values of five
# distributions, a value of the result was wrong by up to 2.9e-6 of the largest at |mean| / deviation = 3. A quarter of
# the tolerance of pooled vectors is 2.5e-6: a model has many norms, and its requests differ from the rows on which the
# export measures.
_LARGEST_FUSED_RATIO = 2.5
# How the names of attention scores end, in `ActivationRanges.magnitudes`.
SCORES = "attention.scores"


class ActivationRanges:
    """The largest numbers of an encoder, and the rows that its norms normalise.

    Attributes:
        magnitudes: largest magnitude of each weight, then of the inputs and outputs of each layer and of the attention
            scores, in the order in which they are computed; without the modules after pooling, which are always
            float32.
        norm_ratio: largest |mean| / deviation of a row that a LayerNorm normalises; 0 without such norms. The deviation
            is √(variance + norm_eps), as in the norm.
    """

    def __init__(self, encoder: Encoder) -> None:
        weights = encoder.fold_temperatures().state_dict()  # the weights that graphs hold
        if isinstance(encoder, ModuleEncoder):
            # Buffers may be masks, which no graph holds.
            weights = dict(encoder.named_parameters())
        self.magnitudes = {name: _magnitude(weight) for name, weight in weights.items() if _in_half_precision(name)}
        self.norm_ratio = 0.0

    @property
    def fuse_norms(self) -> bool:
        """Whether graphs for CUDA may use SkipLayerNormalization."""
        return self.norm_ratio <= _LARGEST_FUSED_RATIO

    @contextmanager
    def watch(self, encoder: Encoder) -> Iterator[None]:
        """Observe the encoder during the `with` block, in which the caller runs it with layouts of `sequence()`."""
        if isinstance(encoder, ModuleEncoder):
            with _ObservedRows(self):
                yield
            return
        hooks = [
            module.register_forward_hook(partial(self._layer, name))
            for name, module in encoder.named_modules()
            if _in_half_precision(name) and not any(module.children())
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def sequence(self, tokens: int, target_tokens: int = 0) -> SingleSequence:
        """Return a layout whose attention is observed."""
        return _ObservedSequence(tokens, target_tokens, self)

    def _layer(self, name: str, module: nn.Module, inputs: tuple[Tensor, ...], y: Tensor) -> None:
        self._record(name, inputs[0])
        self._record(name, y)
        if isinstance(module, nn.LayerNorm) and inputs[0].ndim == 2:  # RMSNorm subtracts no mean
            self.norm(inputs[0], module.eps)
        if isinstance(module, Router):
            self._record(name, module.scores(inputs[0]))
        if isinstance(module, nn.Linear) and module.bias is not None:
            # On CUDA, the next operator may add the bias; then the product without the bias is stored.
            self._record(name, y - module.bias)

    def scores(self, name: str, query: Tensor, key: Tensor, terms: ScoreTerms) -> None:
        """Observe the scores of one layer; query and key are [H, n, head_dim]."""
        # Kernels that are not fused store the scaled scores in float16, those of masked pairs too.
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        self._record(name, scores)
        if terms.cap:
            self._record(name, torch.tensor(float(terms.cap)))
            scores = cap_scores(scores, terms.cap)
        bias = torch.zeros(())
        for term in terms.bias_terms(query, key):
            bias = bias + term
            self._record(name, term)
            self._record(name, bias)
        self._record(name, scores + bias)

    def norm(self, rows: Tensor, epsilon: float) -> None:
        """Observe the rows [R, width] that a norm normalises, which may be a sum in a graph."""
        _, means, inverse_deviations = torch.native_layer_norm(rows, rows.shape[-1:], None, None, epsilon)
        self.norm_ratio = max(self.norm_ratio, (means * inverse_deviations).abs().max().item())

    def rows(self, name: str, values: Tensor) -> None:
        """Observe rows that a module of the caller computes."""
        self._record(name, values)

    def _record(self, name: str, values: Tensor) -> None:
        if values.is_floating_point():
            self.magnitudes[name] = max(self.magnitudes.get(name, 0.0), _magnitude(values))


class _ObservedSequence(SingleSequence):
    """A sequence whose attention scores `ActivationRanges` observes."""

    def __init__(self, tokens: int, target_tokens: int, ranges: ActivationRanges) -> None:
        super().__init__(tokens, target_tokens)
        self._ranges = ranges
        self._layers = itertools.count()

    @override
    def attend(self, query: Tensor, key: Tensor, value: Tensor, heads: int, terms: ScoreTerms) -> Tensor:
        self._observe(query, key, heads, terms)
        return super().attend(query, key, value, heads, terms)

    @override
    def attend_to_source(self, query: Tensor, key: Tensor, value: Tensor, heads: int, terms: ScoreTerms) -> Tensor:
        if self.source is not None:  # `attend` observes other layouts.
            self._observe(query, key, heads, terms)
        return super().attend_to_source(query, key, value, heads, terms)

    def _observe(self, query: Tensor, key: Tensor, heads: int, terms: ScoreTerms) -> None:
        scores = f"layers.{next(self._layers)}.{SCORES}"
        self._ranges.scores(scores, self._split_heads(query, heads), self._split_heads(key, heads), terms)


class _ObservedRows(TorchFunctionMode):
    """Observe what the functions of PyTorch return to a module of the caller, without arrays of pairs of rows."""

    def __init__(self, ranges: ActivationRanges) -> None:
        super().__init__()
        self._ranges = ranges

    @override
    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in (F.layer_norm, torch.layer_norm):
            self._norm(*args, **(kwargs or {}))
        if func is F.linear:
            self._product(result.detach(), *args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.ndim > 1 and result.numel() and result.shape[-1] != result.shape[-2]:
            self._ranges.rows(func.__name__, result.detach())
        return result

    def _norm(
        self,
        rows: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
        _: object = None,
    ) -> None:
        """Observe a norm that a graph may compute as SkipLayerNormalization."""
        if weight is not None and len(normalized_shape) == 1:
            self._ranges.norm(rows.detach().flatten(0, -2), eps)

    def _product(self, result: Tensor, _: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
        """Observe the product of a linear layer without its bias, which the next operator may add on CUDA."""
        if bias is not None:
            self._ranges.rows("linear", result - bias.detach())


def _in_half_precision(name: str) -> bool:
    """Return whether graphs in fp16 hold a weight or a module in float16: all but the modules after the layers."""
    return not name.startswith(FLOAT32_MODULES)


def _magnitude(values: Tensor) -> float:
    # One fast pass over memory; `abs` would copy the values.
    lowest, highest = values.aminmax()
    return max(-lowest.item(), highest.item())
