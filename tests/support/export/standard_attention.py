"""PackedMultiHeadAttention as functions of standard operators, so that ONNX Runtime runs graphs for CUDA on a CPU.

The functions replace the one operator that has no kernel on the CPU. ONNX Runtime checks the types and shapes of all
other nodes, and runs them with its own kernels. `tests/export/test_standard_attention.py` compares the functions with
ONNX Runtime's published values.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper, parser

from headwaiter_server.runtime.graph import open_session, session_options

_OPERATOR, _DOMAIN = "PackedMultiHeadAttention", "headwaiter.tests"
# The attention bias of nodes without one.
_NO_BIAS = "no_attention_bias"
# Rows [T, H·d] in grid cells, with zeros in cells without a row: [B, H, N, d].
_SPLIT_HEADS = """
    {0}_width = Shape <start = 1> ({0})
    {0}_shape = Concat <axis = 0> (cells, {0}_width)
    {0}_zeros = ConstantOfShape ({0}_shape)
    {0}_empty = CastLike ({0}_zeros, {0})
    {0}_cells = ScatterND ({0}_empty, cell_of_row, {0})
    {0}_split = Reshape ({0}_cells, grid)
    {0}_heads = Transpose <perm = [0, 2, 1, 3]> ({0}_split)
"""
ATTENTION = f"""
<domain: "{_DOMAIN}", opset_import: ["": 20]>
{_OPERATOR} <num_heads, mask_filter_value, scale: float = 0.0>
    (query, key, value, bias, token_offset, cumulative, attention_bias) => (context)
{{
    zero = Constant <value_ints = [0]> ()
    one = Constant <value_ints = [1]> ()
    rest = Constant <value_ints = [-1]> ()
    last = Constant <value_ints = [9223372036854775807]> ()
    heads = Constant <value_int: int = @num_heads> ()
    heads_axis = Reshape (heads, one)
    sizes = Shape (token_offset)
    grid = Concat <axis = 0> (sizes, heads_axis, rest)
    cells = ReduceProd (sizes)
    offsets = Cast <to = 7> (token_offset)
    all_offsets = Reshape (offsets, rest)
    tokens = Shape <end = 1> (query)
    offset_of_row = Slice (all_offsets, zero, tokens)
    cell_of_row = Unsqueeze (offset_of_row, one)
    {"".join(_SPLIT_HEADS.format(name) for name in ("query", "key", "value"))}
    key_columns = Transpose <perm = [0, 1, 3, 2]> (key_heads)
    products = MatMul (query_heads, key_columns)
    float_products = Cast <to = 1> (products)
    head_dim = Shape <start = 3> (query_heads)
    float_head_dim = Cast <to = 1> (head_dim)
    root = Sqrt (float_head_dim)
    usual_scale = Reciprocal (root)
    given_scale = Constant <value_float: float = @scale> ()
    is_given = Cast <to = 9> (given_scale)
    factor = Where (is_given, given_scale, usual_scale)
    scaled = Mul (float_products, factor)
    float_bias = Cast <to = 1> (attention_bias)
    scores = Add (scaled, float_bias)
    ends = Slice (cumulative, one, last)
    starts = Slice (cumulative, zero, rest)
    lengths = Sub (ends, starts)
    length_column = Unsqueeze (lengths, one)
    ones = ConstantOfShape <value = int32[1] {{1}}> (sizes)
    position = CumSum <exclusive = 1> (ones, one)
    valid_cell = Less (position, length_column)
    middle = Constant <value_ints = [1, 2]> ()
    valid_key = Unsqueeze (valid_cell, middle)
    masked = Constant <value_float: float = @mask_filter_value> ()
    masked_scores = Where (valid_key, scores, masked)
    float_weights = Softmax <axis = -1> (masked_scores)
    weights = CastLike (float_weights, value)
    head_contexts = MatMul (weights, value_heads)
    cell_contexts = Transpose <perm = [0, 2, 1, 3]> (head_contexts)
    width = Shape <start = 1> (value)
    flat = Concat <axis = 0> (cells, width)
    flat_contexts = Reshape (cell_contexts, flat)
    context = Gather (flat_contexts, offset_of_row)
}}
"""
# The packed input [T, H, 3, d] as rows [T, H·d] of queries, keys and values.
_SPLIT = f"""
<domain: "{_DOMAIN}", opset_import: ["": 20]>
Split (packed) => (query, key, value)
{{
    rows = Constant <value_ints = [0, -1]> ()
    queries, keys, values = Split <axis = 2, num_outputs = 3> (packed)
    query = Reshape (queries, rows)
    key = Reshape (keys, rows)
    value = Reshape (values, rows)
}}
"""
# The packed input with its biases [3·H·d].
_ADD_BIASES = f"""
<domain: "{_DOMAIN}", opset_import: ["": 20]>
AddBiases (packed, biases) => (sum)
{{
    sizes = Shape <start = 1> (packed)
    order = Constant <value_ints = [1, 0, 2]> ()
    shape = Gather (sizes, order)
    parts = Reshape (biases, shape)
    heads = Transpose <perm = [1, 0, 2]> (parts)
    sum = Add (packed, heads)
}}
"""


def open_with_standard_attention(graph: Path, attention: str = ATTENTION) -> ort.InferenceSession:
    """Open a graph for CUDA on the CPU, with the function `attention` in place of the operator."""
    model = onnx.load(graph, load_external_data=False)
    nodes = list(model.graph.node)
    del model.graph.node[:]
    for node in nodes:
        if node.op_type == _OPERATOR:
            if not node.input[1]:
                model.graph.node.extend(_split_packed(node))
            assert not node.input[3]
            if len(node.input) == 6:
                node.input.append(_NO_BIAS)
            node.domain = _DOMAIN
        model.graph.node.append(node)
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((1, 1, 1, 1), np.float32), _NO_BIAS))
    model.functions.extend(parser.parse_function(each) for each in (attention, _SPLIT, _ADD_BIASES))
    model.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
    options = session_options(threads=1)
    # A model in memory has no folder in which ONNX Runtime would look for its weights.
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(graph.parent))
    return open_session(model.SerializeToString(), "cpu", options)


def _split_packed(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes that turn a node's packed input and its biases into its first three inputs."""
    packed, biases = node.input[0], node.input[3]
    if biases:
        yield helper.make_node("AddBiases", [packed, biases], [f"{packed}/sum"], domain=_DOMAIN)
        packed = f"{packed}/sum"
    names = [f"{node.name}/{part}" for part in ("query", "key", "value")]
    yield helper.make_node("Split", [packed], names, domain=_DOMAIN)
    for index, name in enumerate((*names, "")):
        node.input[index] = name
