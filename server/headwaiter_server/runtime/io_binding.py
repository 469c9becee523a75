"""Runs a session on a device that has memory of its own."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray


class DeviceMemorySession:
    """A session whose inputs and outputs lie in its device's memory.

    An input's buffer is used again as long as its shape and type are the same, and each output is copied to the host
    once. Buffers come from an allocator of the Python binding's own, which no limit of the session bounds.
    """

    def __init__(self, session: ort.InferenceSession, device_type: str, device: int) -> None:
        self._session = session
        self._place = device_type, device
        self._binding = session.io_binding()
        self._buffers: dict[str, tuple[object, ort.OrtValue]] = {}

    def run(self, names: Sequence[str], feeds: Mapping[str, NDArray[np.generic]]) -> list[NDArray[np.generic]]:
        """Compute the named outputs, as `InferenceSession.run` does; from one thread at a time."""
        for name, values in feeds.items():
            self._fill(name, values)
        try:
            for name in names:
                self._binding.bind_output(name, *self._place)
            self._session.run_with_iobinding(self._binding)
            outputs: list[NDArray[np.generic]] = self._binding.copy_outputs_to_cpu()
            return outputs
        finally:
            # Only now is their memory free for the next batch, which may ask for others.
            self._binding.clear_binding_outputs()

    def _fill(self, name: str, values: NDArray[np.generic]) -> None:
        form = values.shape, values.dtype
        held, buffer = self._buffers.get(name, (None, None))
        if buffer is None or held != form:
            buffer = ort.OrtValue.ortvalue_from_shape_and_type(values.shape, values.dtype, *self._place)
            self._binding.bind_ortvalue_input(name, buffer)
            self._buffers[name] = form, buffer
        buffer.update_inplace(values)
