"""Run a graph in bf16 on a CPU with OpenVINO, because ONNX Runtime has no bf16 kernels for CPUs.

OpenVINO keeps kernels for each set of shapes that it has seen, so its batches are rounded up to few shapes.
"""

import ctypes
import importlib.util
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headwaiter_server.runtime.errors import ProviderUnavailable
from headwaiter_server.runtime.hardware import processor_flags

_INSTRUCTIONS = {"avx512_bf16", "amx_bf16"}
# PR_SET_THP_DISABLE. OpenVINO frees and allocates memory for each new shape. From the 1,000th to the 3,000th batch, the
# memory of a process grew by 137 MiB in transparent huge pages, and by 1 MiB without them.
_DISABLE_HUGE_PAGES = 41


class Port(NamedTuple):
    """An input or an output of a graph; a size that depends on the batch is None."""

    name: str
    shape: list[int | None]


class OpenVinoSession:
    """A graph in float32, computed in bf16, with the methods of an `onnxruntime.InferenceSession` that graphs need."""

    def __init__(self, path: Path, threads: int | None) -> None:
        """Open a graph; without a number of threads, OpenVINO uses one per physical core.

        Raises:
            ProviderUnavailable: the processor has no bf16, or OpenVINO is not installed.
        """
        require_bf16()
        import openvino

        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_DISABLE_HUGE_PAGES, 1, 0, 0, 0)
        # Threads that are pinned to cores would share them with the threads of other sessions and processes.
        options: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "bf16", "NUM_STREAMS": 1, "ENABLE_CPU_PINNING": False}
        if threads is not None:
            options["INFERENCE_NUM_THREADS"] = threads
        self._model = openvino.Core().compile_model(path, "CPU", options)
        self._request = self._model.create_infer_request()

    def get_inputs(self) -> list[Port]:
        """Return the inputs of the graph."""
        return [_port(port) for port in self._model.inputs]

    def get_outputs(self) -> list[Port]:
        """Return the outputs of the graph."""
        return [_port(port) for port in self._model.outputs]

    def run(
        self, names: Sequence[str], feeds: Mapping[str, NDArray[np.generic]], _options: object = None
    ) -> list[NDArray[Any]]:
        """Run the graph, and return a copy of these outputs."""
        self._request.infer(dict(feeds), share_inputs=True, share_outputs=True)
        return [self._request.get_tensor(name).data.copy() for name in names]


def require_bf16(flags: Collection[str] | None = None) -> None:
    """Check that this machine can compute in bf16.

    Args:
        flags: the processor's instruction sets; None asks the operating system.

    Raises:
        ProviderUnavailable: the processor has no bf16, or OpenVINO is not installed.
    """
    if _INSTRUCTIONS.isdisjoint(processor_flags() if flags is None else flags):
        raise ProviderUnavailable(
            "this processor has neither AVX512_BF16 nor AMX (no avx512_bf16 or amx_bf16 in /proc/cpuinfo), and bf16 "
            "needs one of them: choose --precision fp32 or int8, or another machine"
        )
    if importlib.util.find_spec("openvino") is None:
        raise ProviderUnavailable("bf16 needs the package openvino: pip install 'headwaiter[bf16]'")


def _port(port: Any) -> Port:
    # A port also has the names of values that OpenVINO found to be equal.
    name = port.node.friendly_name.removesuffix("/sink_port_0")
    return Port(name, [size.get_length() if size.is_static else None for size in port.partial_shape])
