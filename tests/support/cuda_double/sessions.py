"""Run ONNX Runtime on the double, as a process of its own: print what happened as JSON.

The test that starts this process makes device 0 hang when this process asks for it.
"""

import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

from headwaiter_server.runtime.graph import require_cuda
from headwaiter_server.runtime.hardware import compute_capability
from tests.support.cuda_double.controls import Controls
from tests.support.cuda_double.log import write_mark

ROWS, INNER, COLUMNS = 4, 8, 16


def product_and_sum() -> bytes:
    """Return a graph that computes x · w + b."""
    values = {
        "w": (INNER, COLUMNS),
        "b": (COLUMNS,),
    }
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["product"]), helper.make_node("Add", ["product", "b"], ["y"])],
        "product_and_sum",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (ROWS, INNER))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (ROWS, COLUMNS))],
        [
            helper.make_tensor(name, TensorProto.FLOAT, shape, np.ones(shape, np.float32).ravel())
            for name, shape in values.items()
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(model.SerializeToString())


def open_on(device: int, **options: str) -> ort.InferenceSession:
    """Open the graph on a device."""
    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    provider = ("CUDAExecutionProvider", {"device_id": str(device), "use_tf32": "0", **options})
    return ort.InferenceSession(product_and_sum(), settings, providers=[provider])


def error_of(call: Callable[[], object]) -> str:
    """Return the message of the error that a call raises; "" if it raises none."""
    try:
        call()
    except Exception as error:  # noqa: BLE001
        return str(error)
    return ""


def run_with_cuda_graph(session: ort.InferenceSession, inputs: Any) -> None:
    """Run a session three times with fixed buffers, of which the first run captures a graph."""
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(inputs, "cuda", 0))
    binding.bind_ortvalue_output("y", ort.OrtValue.ortvalue_from_shape_and_type((ROWS, COLUMNS), np.float32, "cuda", 0))
    for _ in range(3):
        session.run_with_iobinding(binding)


def main() -> None:
    """Run sessions on two devices, and let the devices fail."""
    log = Path(os.environ["CUDA_DOUBLE_LOG"])
    controls = Controls(Path(os.environ["CUDA_DOUBLE_CONTROLS"]))
    inputs = np.arange(ROWS * INNER, dtype=np.float32).reshape(ROWS, INNER)
    found: dict[str, Any] = {}

    require_cuda()
    found["capabilities"] = [compute_capability(device) for device in range(3)]
    first, second = open_on(0), open_on(1)
    found["providers"] = first.get_providers()

    write_mark(log, "run")
    first.run(None, {"x": inputs})
    write_mark(log, "ran")
    returned = ort.OrtValue.ortvalue_from_numpy(inputs, "cuda", 0).numpy()
    found["uploaded values return"] = bool((returned == inputs).all())
    found["memory in use"] = [controls.bytes_in_use(device) for device in (0, 1)]

    write_mark(log, "capture")
    run_with_cuda_graph(open_on(0, enable_cuda_graph="1"), inputs)
    write_mark(log, "captured")

    # After a failed allocation, the arena of ONNX Runtime tries smaller ones.
    controls.out_of_memory_at(1, device=0, times=1000)
    found["out of memory"] = error_of(lambda: open_on(0))
    controls.out_of_memory_at(1, device=0, times=0)
    found["after out of memory"] = error_of(lambda: first.run(None, {"x": inputs}))

    print("hang", flush=True)
    sys.stdin.readline()
    found["after the hang"] = error_of(lambda: first.run(None, {"x": inputs}))

    controls.fail_at_launch(1, device=0)
    found["failed launch"] = [error_of(lambda: first.run(None, {"x": inputs})) for _ in range(2)]
    # CUDA remembers the last error of each thread, whatever the device, so the other device has its own thread.
    with ThreadPoolExecutor(1) as thread:
        run = thread.submit(error_of, lambda: second.run(None, {"x": inputs}))
        found["other device after failed launch"] = run.result()
    controls.vanish(device=1)
    found["vanished"] = error_of(lambda: second.run(None, {"x": inputs}))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
