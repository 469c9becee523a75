"""ONNX graphs of one attention operator with a causal mask, each in another way, over sequences of equal lengths.

T is the number of tokens of all B sequences, N that of each sequence, and d the size of each of H heads.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper

HEADS, HEAD_DIM = 12, 64
_WIDTH = HEADS * HEAD_DIM
_SCALE = 1 / math.sqrt(HEAD_DIM)
# The same versions as in exported graphs.
_OPSETS = (helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1))
_IR_VERSION = 10
_TYPES = {"float16": TensorProto.FLOAT16, "int32": TensorProto.INT32, "int64": TensorProto.INT64}
OUTPUT = "context"

Inputs = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True)
class Rows:
    """Queries, keys and values of B sequences of N tokens, float16 [T, H·d]."""

    query: NDArray[np.float16]
    key: NDArray[np.float16]
    value: NDArray[np.float16]
    sequences: int
    tokens: int

    @classmethod
    def random(cls, sequences: int, tokens: int) -> "Rows":
        """Draw normally distributed rows."""
        rng = np.random.default_rng(0)
        query, key, value = rng.standard_normal((3, sequences * tokens, _WIDTH), np.float32).astype(np.float16)
        return cls(query, key, value, sequences, tokens)

    def by_name(self) -> dict[str, NDArray[np.generic]]:
        """Return the three arrays by their names."""
        return {"query": self.query, "key": self.key, "value": self.value}


def gathered(rows: Rows) -> tuple[bytes, Inputs]:
    """Return a graph of standard operators that gathers rows into grid cells and stores all scores, and its inputs."""
    places = np.arange(rows.sequences * rows.tokens, dtype=np.int64)
    nodes = []
    for name, order in (("query", (0, 2, 1, 3)), ("key", (0, 2, 3, 1)), ("value", (0, 2, 1, 3))):
        nodes += [
            helper.make_node("Gather", [name, "gather"], [f"{name}_cells"]),
            helper.make_node("Reshape", [f"{name}_cells", "split"], [f"{name}_split"]),
            helper.make_node("Transpose", [f"{name}_split"], [f"{name}_heads"], perm=order),
        ]
    nodes += [
        _ints("split", [0, 0, HEADS, HEAD_DIM]),
        _ints("joined", [-1, _WIDTH]),
        helper.make_node("Constant", [], ["scale"], value=helper.make_tensor("", TensorProto.FLOAT16, [], [_SCALE])),
        helper.make_node("MatMul", ["query_heads", "key_heads"], ["products"]),
        helper.make_node("Mul", ["products", "scale"], ["scaled"]),
        helper.make_node("Add", ["scaled", "attention_bias"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "value_heads"], ["heads"]),
        helper.make_node("Transpose", ["heads"], ["cells"], perm=(0, 2, 1, 3)),
        helper.make_node("Reshape", ["cells", "joined"], ["grid"]),
        helper.make_node("Gather", ["grid", "scatter"], [OUTPUT]),
    ]
    # Constants come before the nodes that read them.
    nodes.sort(key=lambda node: node.op_type != "Constant")
    gather = places.reshape(rows.sequences, rows.tokens)
    return _graph(nodes, {**rows.by_name(), "gather": gather, "scatter": places, "attention_bias": causal_bias(rows)})


def packed_with_bias(rows: Rows) -> tuple[bytes, Inputs]:
    """Return a graph of PackedMultiHeadAttention with the mask as `attention_bias`, and its inputs."""
    places = np.arange(rows.sequences * rows.tokens, dtype=np.int32)
    inputs = {
        **rows.by_name(),
        "token_offset": places.reshape(rows.sequences, rows.tokens),
        "cu_seqlens": np.arange(rows.sequences + 1, dtype=np.int32) * np.int32(rows.tokens),
        "attention_bias": causal_bias(rows),
    }
    names = ["query", "key", "value", "", "token_offset", "cu_seqlens", "attention_bias"]
    return _graph([_fused("PackedMultiHeadAttention", names)], inputs)


def causal_multi_head(rows: Rows) -> tuple[bytes, Inputs]:
    """Return a graph of MultiHeadAttention with `unidirectional`, which needs padded sequences, and its inputs."""
    node = _fused("MultiHeadAttention", ["query", "key", "value"], unidirectional=1)
    padded = {name: each.reshape(rows.sequences, rows.tokens, _WIDTH) for name, each in rows.by_name().items()}
    return _graph([node], padded)


def bias_alone(rows: Rows) -> tuple[bytes, Inputs]:
    """Return a graph that computes `attention_bias` from numbers by distance, as exported graphs do, and its inputs."""
    by_distance = np.full((1, 2 * rows.tokens - 1), np.finfo(np.float16).min, np.float16)
    by_distance[:, : rows.tokens] = 0
    positions = np.arange(rows.tokens, dtype=np.int32)
    inputs = {
        "by_distance": by_distance,
        "shifted": positions + np.int32(rows.tokens - 1),
        "column": positions[:, None],
    }
    nodes = [
        helper.make_node("Sub", ["shifted", "column"], ["places"]),
        helper.make_node("Gather", ["by_distance", "places"], [OUTPUT], axis=1),
    ]
    return _graph(nodes, inputs)


VARIANTS: Mapping[str, Callable[[Rows], tuple[bytes, Inputs]]] = {
    "gathered": gathered,
    "PackedMultiHeadAttention with attention_bias": packed_with_bias,
    "causal MultiHeadAttention": causal_multi_head,
}


def causal_bias(rows: Rows) -> NDArray[np.float16]:
    """Return the mask [1, 1, N, N]."""
    bias = np.full((rows.tokens, rows.tokens), np.finfo(np.float16).min, np.float16)
    return np.triu(bias, 1)[None, None]


def _fused(operator: str, inputs: list[str], **attributes: int) -> NodeProto:
    chosen: Mapping[str, Any] = {"num_heads": HEADS, "scale": _SCALE, **attributes}
    return helper.make_node(operator, inputs, [OUTPUT], domain="com.microsoft", **chosen)


def _ints(name: str, values: list[int]) -> NodeProto:
    return helper.make_node("Constant", [], [name], value_ints=values)


def _graph(nodes: list[NodeProto], inputs: Inputs) -> tuple[bytes, Inputs]:
    values = [helper.make_tensor_value_info(name, _TYPES[str(each.dtype)], each.shape) for name, each in inputs.items()]
    output = helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT16, None)
    graph = helper.make_graph(nodes, "attention", values, [output])
    model = helper.make_model(graph, opset_imports=_OPSETS, ir_version=_IR_VERSION)
    return bytes(model.SerializeToString()), inputs
