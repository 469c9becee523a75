"""ONNX Runtime's own operators in numpy, written from the documentation of their schemas.

With them, onnx's reference evaluator runs the graphs for CUDA on machines without a GPU.
"""

import numpy as np
from onnx.reference.op_run import OpRun

from tests.oracle import ACTIVATIONS, Array, layer_norm, softmax


class PackedMultiHeadAttention(OpRun):
    """Attention over concatenated sequences; `token_offset` gives the grid cell of each row."""

    op_domain = "com.microsoft"

    def _run(
        self,
        query: Array,
        key: Array | None,
        value: Array | None,
        bias: None,
        token_offset: Array,
        cumulative_sequence_length: Array,
        attention_bias: None = None,
        num_heads: int = 0,
        mask_filter_value: float = -10000.0,
        scale: float | None = None,
    ) -> tuple[Array]:
        assert bias is None
        assert attention_bias is None
        assert scale is None
        if key is None or value is None:
            # The packed form [tokens, heads, 3, head_dim].
            assert (key, value, query.ndim, query.shape[1:3]) == (None, None, 4, (num_heads, 3))
            query, key, value = (query[:, :, part].reshape(len(query), -1) for part in range(3))
        cells = token_offset.ravel()[: len(query)]
        lengths = np.diff(cumulative_sequence_length)

        def split(rows: Array) -> Array:
            padded = np.zeros((token_offset.size, rows.shape[1]))
            padded[cells] = rows
            return padded.reshape(*token_offset.shape, num_heads, -1).transpose(0, 2, 1, 3)

        q, k, v = split(query), split(key), split(value)
        scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(q.shape[-1])
        valid = np.arange(token_offset.shape[1]) < lengths[:, None]
        scores = np.where(valid[:, None, None, :], scores, mask_filter_value)
        context = (softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(token_offset.size, -1)
        return (context[cells].astype(value.dtype),)


class MultiHeadAttention(OpRun):
    """Attention over grid cells of B sequences, with the key mask in its longest form, [3B + 2].

    The mask concatenates the number of keys of each sequence [B], the offsets of the sequences' query cells [B + 1],
    and the offsets of their key cells [B + 1].
    """

    op_domain = "com.microsoft"

    def _run(
        self,
        query: Array,
        key: Array,
        value: Array,
        bias: None,
        key_padding_mask: Array,
        attention_bias: Array | None = None,
        num_heads: int = 0,
        mask_filter_value: float = -10000.0,
        unidirectional: int = 0,
        scale: float | None = None,
    ) -> tuple[Array]:
        assert bias is None
        assert scale is None
        batch, longest = query.shape[:2]
        assert key_padding_mask.shape == (3 * batch + 2,)
        lengths, query_ends, key_ends = np.split(key_padding_mask, [batch, 2 * batch + 1])
        q, k, v = (cells.astype(np.float64).reshape(batch * longest, num_heads, -1) for cells in (query, key, value))
        context = np.zeros((batch * longest, num_heads, v.shape[2]))
        for index, length in enumerate(lengths):
            queries = slice(query_ends[index], query_ends[index + 1])
            keys = slice(key_ends[index], key_ends[index] + length)
            scores = np.einsum("qhd,khd->hqk", q[queries], k[keys]) / np.sqrt(q.shape[2])
            if attention_bias is not None:
                scores = scores + attention_bias[0, :, :, :length]
            if unidirectional:
                scores = np.where(np.tri(longest, length, dtype=bool), scores, mask_filter_value)
            context[queries] = np.einsum("hqk,khd->qhd", softmax(scores), v[keys])
        return (context.reshape(value.shape).astype(value.dtype),)


class SkipLayerNormalization(OpRun):
    """LayerNorm(x + skip + bias)."""

    op_domain = "com.microsoft"

    def _run(
        self, x: Array, skip: Array, gamma: Array, beta: Array, bias: Array | None = None, epsilon: float = 0.0
    ) -> tuple[Array]:
        total, gamma_, beta_ = (array.astype(np.float64) for array in (x + skip, gamma, beta))
        return (layer_norm(total if bias is None else total + bias, gamma_, beta_, epsilon).astype(x.dtype),)


class BiasGelu(OpRun):
    """Gelu(x + bias)."""

    op_domain = "com.microsoft"

    def _run(self, x: Array, bias: Array) -> tuple[Array]:
        return (ACTIVATIONS["gelu"](x.astype(np.float64) + bias).astype(x.dtype),)


class FastGelu(OpRun):
    """Gelu(x + bias), in the tanh approximation."""

    op_domain = "com.microsoft"

    def _run(self, x: Array, bias: Array) -> tuple[Array]:
        return (ACTIVATIONS["gelu_tanh"](x.astype(np.float64) + bias).astype(x.dtype),)


CONTRIB_OPS = [BiasGelu, FastGelu, MultiHeadAttention, PackedMultiHeadAttention, SkipLayerNormalization]
