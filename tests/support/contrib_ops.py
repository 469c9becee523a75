"""ONNX Runtime's own operators in numpy, written from the documentation of their schemas.

With them, onnx's reference evaluator runs the graphs for CUDA on machines without a GPU. An operator refuses inputs and
attributes that it does not implement. `tests/export/test_contrib_ops.py` compares the operators with ONNX Runtime's
published values.
"""

from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun
from typing_extensions import override

from tests.support.oracle import ACTIVATIONS, Array, layer_norm, softmax


class PackedMultiHeadAttention(OpRun):
    """Attention over concatenated sequences; `token_offset` gives the grid cell of each row."""

    op_domain = "com.microsoft"

    def _run(
        self,
        query: Array,
        key: Array | None,
        value: Array | None,
        bias: Array | None,
        token_offset: Array,
        cumulative_sequence_length: Array,
        attention_bias: Array | None = None,
        num_heads: int = 0,
        mask_filter_value: float = -10000.0,
        scale: float | None = None,
    ) -> tuple[Array]:
        batch, longest = token_offset.shape
        dtype = query.dtype
        if key is None or value is None:
            # The packed form [tokens, heads, 3, head_dim].
            assert (key, value, query.ndim, query.shape[1:3]) == (None, None, 4, (num_heads, 3))
            query, key, value = (query[:, :, part].reshape(len(query), -1) for part in range(3))
        rows = [each.astype(np.float64) for each in (query, key, value)]
        if bias is not None:
            ends = np.cumsum([each.shape[1] for each in rows])
            assert bias.shape == (ends[-1],)
            # The kernel that adds biases writes the sums in the operator's precision.
            sums = [each + part for each, part in zip(rows, np.split(bias, ends[:-1]), strict=True)]
            rows = [each.astype(dtype).astype(np.float64) for each in sums]
        cells = token_offset.ravel()[: len(query)]
        lengths = np.diff(cumulative_sequence_length)

        def split_heads(rows: Array) -> Array:
            padded = np.zeros((token_offset.size, rows.shape[1]))
            padded[cells] = rows
            return padded.reshape(batch, longest, num_heads, -1).transpose(0, 2, 1, 3)

        q, k, v = map(split_heads, rows)
        scores = q @ k.transpose(0, 1, 3, 2) * (1 / np.sqrt(q.shape[-1]) if scale is None else scale)
        if attention_bias is not None:
            of_sequences, of_heads, *grid = attention_bias.shape
            assert of_sequences in (1, batch)
            assert of_heads in (1, num_heads)
            assert grid == [longest, longest]
            scores = scores + attention_bias
        valid = np.arange(longest) < lengths[:, None]
        scores = np.where(valid[:, None, None, :], scores, mask_filter_value)
        context = (softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(token_offset.size, -1)
        return (context[cells].astype(dtype),)


class RotaryEmbedding(OpRun):
    """Rotations of the pairs (2i, 2i + 1) of each head by the angles of given positions; x [B, n, H·head_dim]."""

    op_domain = "com.microsoft"

    def _run(
        self,
        x: Array,
        position_ids: Array,
        cos_cache: Array,
        sin_cache: Array,
        interleaved: int = 0,
        is_packed_batching: int = 0,
        num_heads: int | None = None,
        rotary_embedding_dim: int | None = None,
    ) -> tuple[Array]:
        assert position_ids.shape == x.shape[:2]
        assert (interleaved, num_heads or 0, rotary_embedding_dim or 0) == (1, 0, 0)
        assert is_packed_batching or x.shape[1] <= len(cos_cache)
        pairs = x.astype(np.float64).reshape(*x.shape[:2], -1, cos_cache.shape[1], 2)
        turns = (cos_cache.astype(np.float64) + 1j * sin_cache)[position_ids]
        rotated = (pairs[..., 0] + 1j * pairs[..., 1]) * turns[:, :, None]
        return (np.stack((rotated.real, rotated.imag), -1).reshape(x.shape).astype(x.dtype),)


class SkipLayerNormalization(OpRun):
    """LayerNorm(x + skip + bias), and the sum; x [..., d], and `skip` has the shape of x or of one of its parts."""

    op_domain = "com.microsoft"

    def _run(
        self,
        x: Array,
        skip: Array,
        gamma: Array,
        beta: Array | None = None,
        bias: Array | None = None,
        epsilon: float = 1e-12,
    ) -> tuple[Array | None, ...]:
        assert skip.shape in (x.shape, x.shape[1:], (1, *x.shape[1:]))
        addends = [array.astype(np.float64) for array in (x, skip, bias) if array is not None]
        total = sum(addends[1:], addends[0])
        shift = np.zeros(len(gamma)) if beta is None else beta.astype(np.float64)
        normalized = layer_norm(total, gamma.astype(np.float64), shift, epsilon).astype(x.dtype)
        # Graphs have no names for the second and third outputs. The evaluator stores them as the value of inputs
        # without a name, which must be None.
        return (normalized, None, None, total.astype(x.dtype))[: len(self.onnx_node.output)]

    @override
    def _check_and_fix_outputs(self, res: tuple[Any, ...]) -> tuple[Any, ...]:
        return res


class SkipSimplifiedLayerNormalization(SkipLayerNormalization):
    """RMSNorm(x + skip), and the sum; `skip` has the shape of x."""

    @override
    def _run(self, x: Array, skip: Array, gamma: Array, *, epsilon: float = 1e-12) -> tuple[Array | None, ...]:  # type: ignore[override]
        assert skip.shape == x.shape
        total = x.astype(np.float64) + skip
        normalized = total / np.sqrt((total**2).mean(-1, keepdims=True) + epsilon) * gamma
        return (normalized.astype(x.dtype), None, None, total.astype(x.dtype))[: len(self.onnx_node.output)]


class BiasGelu(OpRun):
    """Gelu(x + bias)."""

    op_domain = "com.microsoft"

    def _run(self, x: Array, bias: Array) -> tuple[Array]:
        return (ACTIVATIONS["gelu"](x.astype(np.float64) + bias).astype(x.dtype),)


class FastGelu(OpRun):
    """Gelu(x + bias), in the tanh approximation."""

    op_domain = "com.microsoft"

    def _run(self, x: Array, bias: Array | None = None) -> tuple[Array]:
        shifted = x.astype(np.float64) + (0.0 if bias is None else bias)
        return (ACTIVATIONS["gelu_tanh"](shifted).astype(x.dtype),)


CONTRIB_OPS = [
    BiasGelu,
    FastGelu,
    PackedMultiHeadAttention,
    RotaryEmbedding,
    SkipLayerNormalization,
    SkipSimplifiedLayerNormalization,
]
