"""Run a session with inputs and outputs in device memory, through ONNX Runtime's I/O binding."""

import threading
from collections.abc import Mapping, Sequence

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from headwaiter_server.runtime.hardware import select_gpu


class DeviceMemorySession:
    """A session whose inputs and outputs are in the memory of its device.

    An input's buffer is reused while the input keeps its shape and type. Each output is copied to the host once. ONNX
    Runtime's Python binding allocates the buffers outside the session's arena, so `gpu_mem_limit` does not count them.
    """

    def __init__(self, session: ort.InferenceSession, device_type: str, device: int) -> None:
        self._session = session
        self._device = device_type, device
        self._binding = session.io_binding()
        self._buffers: dict[str, tuple[object, ort.OrtValue]] = {}
        # Has the attribute `selected` in threads that have selected the GPU.
        self._thread = threading.local()

    def run(
        self, names: Sequence[str], feeds: Mapping[str, NDArray[np.generic]], options: ort.RunOptions | None = None
    ) -> list[NDArray[np.generic]]:
        """Compute the named outputs from the named inputs, as `InferenceSession.run` does. Not thread-safe."""
        self._select_gpu()
        for name, values in feeds.items():
            self._copy_to_device(name, values)
        try:
            for name in names:
                self._binding.bind_output(name, *self._device)
            self._session.run_with_iobinding(self._binding, options)
            outputs: list[NDArray[np.generic]] = self._binding.copy_outputs_to_cpu()
            return outputs
        finally:
            # Free the memory of the outputs; the next batch may request other outputs.
            self._binding.clear_binding_outputs()

    def _select_gpu(self) -> None:
        """Select the session's GPU before inputs are copied; otherwise the copies would open a context on GPU 0."""
        device_type, device = self._device
        if device_type == "cuda" and device != 0 and not hasattr(self._thread, "selected"):
            select_gpu(device)
            self._thread.selected = True

    def _copy_to_device(self, name: str, values: NDArray[np.generic]) -> None:
        shape_and_type = values.shape, values.dtype
        buffer_shape_and_type, buffer = self._buffers.get(name, (None, None))
        if buffer is None or buffer_shape_and_type != shape_and_type:
            buffer = ort.OrtValue.ortvalue_from_shape_and_type(values.shape, values.dtype, *self._device)
            self._binding.bind_ortvalue_input(name, buffer)
            self._buffers[name] = shape_and_type, buffer
        buffer.update_inplace(values)
