"""Whether this machine has a card that ONNX Runtime can use."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx

from headwaiter_server.runtime.errors import ProviderUnavailable
from headwaiter_server.runtime.graph import EncoderGraph


@cache
def why_no_cuda() -> str:
    """Return the runtime's own reason why it cannot use CUDA; empty where it can."""
    rows = onnx.helper.make_tensor_value_info("rows", onnx.TensorProto.FLOAT, [None])
    same = onnx.helper.make_tensor_value_info("same", onnx.TensorProto.FLOAT, [None])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["rows"], ["same"])], "probe", [rows], [same])
    with TemporaryDirectory() as folder:
        path = Path(folder) / "probe.onnx"
        onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10), path)
        try:
            EncoderGraph.open(path, "cuda")
        except ProviderUnavailable as error:
            return str(error)
    return ""
