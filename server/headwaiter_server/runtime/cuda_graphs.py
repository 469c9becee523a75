"""Replay small batches as CUDA graphs: one launch starts all kernels of a batch.

A CUDA graph repeats the kernels of the run that was captured, with the sizes and the addresses of that run. ONNX
Runtime chooses a graph by a number, and does not check the sizes. Here a number belongs to one Replay, and only a
Replay lays out inputs for its own graph, so no batch can reach the graph of another shape.
"""

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from headwaiter_server.runtime.hardware import CUDA_DRIVER
from headwaiter_server.runtime.packing import PackedBatch
from headwaiter_server.runtime.shape_buckets import GraphShape, append_dummies, graph_shape

Arrays = Mapping[str, NDArray[Any]]

# Hold this lock while a graph is captured, and while a session opens, which waits for all work of the device: CUDA
# allows no such wait during a capture.
CAPTURE_LOCK = threading.Lock()
_GRAPH_NUMBER = "gpu_graph_id"
_NO_GRAPH = -1
# CUDA's memory allocations begin at multiples of this number of bytes, so each array in a block does, too.
_ALIGNMENT = 256
_THREAD_LOCAL_CAPTURES = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
_thread = threading.local()


def ignore_captures_elsewhere() -> None:
    """Let this thread allocate memory and copy while another thread captures a graph.

    By default, CUDA refuses such calls during a capture of any thread, and the capture fails.
    """
    if hasattr(_thread, "ignores_captures"):
        return
    _thread.ignores_captures = True
    with suppress(OSError, AttributeError):  # Without a driver there are no captures.
        mode = ctypes.c_int(_THREAD_LOCAL_CAPTURES)
        ctypes.CDLL(CUDA_DRIVER).cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


def run_options(graph_number: int = _NO_GRAPH) -> ort.RunOptions:
    """Return options for a run of a session with CUDA graphs; without a number, for an ordinary run."""
    options = ort.RunOptions()
    options.add_run_config_entry(_GRAPH_NUMBER, str(graph_number))
    return options


def same_bits(values: Arrays, others: Arrays) -> bool:
    """Return whether two runs gave the same bits."""
    return all(value.tobytes() == others[name].tobytes() for name, value in values.items())


class _Block:
    """Arrays of fixed shapes in one piece of a device's memory, so that one copy moves all of them."""

    def __init__(self, arrays: Arrays, device: int) -> None:
        self._slots: dict[str, tuple[tuple[int, ...], np.dtype[Any], int]] = {}
        self.size = 0
        for name, array in arrays.items():
            self._slots[name] = (array.shape, array.dtype, self.size)
            self.size += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
        self._device = device
        self.memory = ort.OrtValue.ortvalue_from_shape_and_type([self.size], np.uint8, "cuda", device)

    def bind(self, bind: Callable[..., None]) -> None:
        """Bind each array to its place, as inputs or as outputs."""
        for name, (shape, dtype, offset) in self._slots.items():
            bind(name, "cuda", self._device, dtype, shape, self.memory.data_ptr() + offset)

    def views(self, content: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        """Return the arrays in the content of the block, without a copy."""
        return {name: np.ndarray(*slot[:2], content, slot[2]) for name, slot in self._slots.items()}


class Upload(dict[str, NDArray[Any]]):
    """The inputs of a batch as views of the bytes that one replay copies to the device."""

    def __init__(self, replay: "Replay", content: NDArray[np.uint8], views: Arrays) -> None:
        super().__init__(views)
        self._replay, self._content = replay, content

    def run(self) -> dict[str, NDArray[Any]]:
        """Run the batch by the replay that laid out these inputs; return the outputs."""
        return self._replay.run(self._content)


class Replay:
    """The graph of one shape, with the memory that it reads and writes."""

    def __init__(self, session: ort.InferenceSession, device: int, number: int, inputs: Arrays, outputs: Arrays):
        """Reserve the memory; the first run captures the graph.

        Args:
            session: a session with CUDA graphs.
            device: the session's device.
            number: the number of the graph, which no other graph of the session may have.
            inputs: inputs of the graph's shape.
            outputs: the outputs of an ordinary run of these inputs.
        """
        self._session, self._options = session, run_options(number)
        self._inputs, self._outputs = _Block(inputs, device), _Block(outputs, device)
        self._binding = session.io_binding()
        self._inputs.bind(self._binding.bind_input)
        self._outputs.bind(self._binding.bind_output)

    def upload(self, inputs: Arrays) -> Upload:
        """Lay out the inputs of a batch for this graph.

        Raises:
            ValueError: an input does not have the graph's shape.
        """
        content = np.empty(self._inputs.size, np.uint8)
        views = self._inputs.views(content)
        for name, view in views.items():
            if inputs[name].shape != view.shape:
                raise ValueError(f"the graph takes {name} of the shape {view.shape}, not {inputs[name].shape}")
            view[...] = inputs[name]
        return Upload(self, content, views)

    def run(self, content: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        """Copy the inputs to the device, launch the graph, and return a copy of the outputs."""
        self._inputs.memory.update_inplace(content)
        self._session.run_with_iobinding(self._binding, self._options)
        return self._outputs.views(self._outputs.memory.numpy())


def _check(shape: GraphShape, upload: Upload, first: Arrays) -> None:
    """Replay a batch again, and compare the outputs with those of the first replay.

    Raises:
        RuntimeError: a bit differs.
    """
    if not same_bits(upload.run(), first):
        raise RuntimeError(f"the graph of {shape} gives other numbers than its first replay")


class CudaGraphs:
    """The CUDA graphs of one session, which only the thread that captured them may run."""

    def __init__(self, session: ort.InferenceSession, device: int) -> None:
        """Start without graphs."""
        self._session, self._device = session, device
        self._replays: dict[GraphShape, Replay] = {}
        self._numbers = count(1)
        self._checks: list[Callable[[], None]] = []

    def __len__(self) -> int:
        """Return the number of graphs in use."""
        return len(self._replays)

    def capture(
        self,
        batch: PackedBatch,
        inputs: Sequence[str],
        outputs: Sequence[str],
        disagreement: Callable[[Arrays, Arrays], str | None],
    ) -> GraphShape | None:
        """Capture the graph of a batch's shape, and check its numbers; return the shape, or None if it is too large.

        Call `checks` after the last capture.

        Args:
            batch: the batch.
            inputs: names of the inputs.
            outputs: names of the outputs.
            disagreement: returns how the outputs of a replay and of an ordinary run differ, or None if they are close
                enough. Their bits may differ.

        Raises:
            Exception: the capture failed, or the outputs disagree.
        """
        shape = graph_shape(batch)
        if shape is None or shape in self._replays:
            return shape
        feeds = append_dummies(batch, *shape).feeds(inputs)
        ordinary = dict(zip(outputs, self._session.run(outputs, feeds, run_options()), strict=True))
        replay = Replay(self._session, self._device, next(self._numbers), feeds, ordinary)
        upload = replay.upload(feeds)
        first = upload.run()
        if problem := disagreement(first, ordinary):
            raise RuntimeError(f"the graph of {shape} gives other numbers than an ordinary run: {problem}")
        self._replays[shape] = replay
        self._checks.append(partial(_check, shape, upload, first))
        return shape

    def checks(self) -> list[Callable[[], None]]:
        """Return functions that check all new graphs again, after runs of other shapes.

        Some kernels read parameters from host memory, which CUDA graphs copy again at each replay. A run of another
        shape may have overwritten the parameters by then.
        """
        checks, self._checks = self._checks, []
        return checks

    def upload(self, batch: PackedBatch, inputs: Sequence[str]) -> Upload | None:
        """Return the inputs of a batch, rounded up to the shape of a graph; None if no graph has this shape."""
        shape = graph_shape(batch)
        replay = None if shape is None else self._replays.get(shape)
        return None if replay is None or shape is None else replay.upload(append_dummies(batch, *shape).feeds(inputs))

    def drop(self, shape: GraphShape | None = None) -> None:
        """Use the graph of a shape no longer; without a shape, use no graph any longer."""
        for each in [shape] if shape else [*self._replays]:
            self._replays.pop(each, None)
