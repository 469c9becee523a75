"""A replay takes only inputs of its own shape, and a failed capture leaves nothing behind."""

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from headwaiter_server.runtime import cuda_graphs
from headwaiter_server.runtime.cuda_graphs import CudaGraphs, Replay, same_bits
from headwaiter_server.runtime.packing import PackedBatch, pack
from headwaiter_server.runtime.shape_buckets import GraphShape

Arrays = Mapping[str, NDArray[Any]]
INPUTS, OUTPUTS = ["input_ids", "gather"], ["pooled"]


class Memory:
    """Device memory."""

    def __init__(self, size: int) -> None:
        self._bytes = np.zeros(size, np.uint8)

    def data_ptr(self) -> int:
        return int(self._bytes.ctypes.data)

    def update_inplace(self, content: NDArray[np.uint8]) -> None:
        self._bytes[...] = content

    def numpy(self) -> NDArray[np.uint8]:
        return self._bytes.copy()


class Binding:
    """Where a run reads and writes."""

    def __init__(self) -> None:
        self.inputs: dict[str, Any] = {}
        self.outputs: dict[str, Any] = {}

    def bind_input(self, name: str, *place: Any) -> None:
        self.inputs[name] = place

    def bind_output(self, name: str, *place: Any) -> None:
        self.outputs[name] = place


class Session:
    """Sums ids on a GPU. As in ONNX Runtime, a number stands for its first binding, whatever the later ones are."""

    def __init__(self) -> None:
        self.captured: dict[int, Binding] = {}
        self.fails = self.adds_parameter = False
        # Host memory that the kernels of the latest run have filled, and that a replay reads again.
        self._parameter = 0

    def io_binding(self) -> Binding:
        return Binding()

    def run(self, names: Sequence[str], feeds: Arrays, number: int) -> list[NDArray[Any]]:
        assert number == -1
        self._parameter = self.adds_parameter * len(feeds["input_ids"])
        return [feeds["input_ids"].sum(keepdims=True) + self._parameter]

    def run_with_iobinding(self, binding: Binding, number: int) -> None:
        if self.fails:
            raise RuntimeError("capture failed")
        first = self.captured.setdefault(number, binding)
        _array(first.outputs["pooled"])[...] = _array(first.inputs["input_ids"]).sum() + self._parameter


def _array(place: Any) -> NDArray[Any]:
    _, _, dtype, shape, address = place
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = (ctypes.c_uint8 * size).from_address(address)
    return np.ndarray(shape, dtype, memory)


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    monkeypatch.setattr(ort.OrtValue, "ortvalue_from_shape_and_type", lambda shape, *_: Memory(*shape))
    monkeypatch.setattr(cuda_graphs, "run_options", lambda number=-1: number)
    return Session()


def _graphs(session: Session) -> CudaGraphs:
    return CudaGraphs(cast(Any, session), 0)


def _other_bits(replayed: Arrays, ordinary: Arrays) -> str | None:
    return None if same_bits(replayed, ordinary) else "other bits"


def _batch(*lengths: int) -> PackedBatch:
    return pack([np.arange(1, 1 + length, dtype=np.int64) for length in lengths])


def test_a_replay_refuses_inputs_of_another_shape(session: Session) -> None:
    inputs: Arrays = {"input_ids": np.arange(4), "gather": np.zeros((2, 2), np.int64)}
    replay = Replay(cast(Any, session), 0, 1, inputs, {"pooled": np.zeros(1, np.int64)})
    assert replay.upload(inputs).run()["pooled"].tolist() == [6]
    for changed in ({"input_ids": np.arange(5)}, {"gather": np.zeros((1, 2), np.int64)}, {"input_ids": np.arange(1)}):
        with pytest.raises(ValueError, match=f"the graph takes {next(iter(changed))} of the shape"):
            replay.upload({**inputs, **changed})


def test_outputs_stay_valid_while_later_batches_run(session: Session) -> None:
    graphs = _graphs(session)
    graphs.capture(_batch(20), INPUTS, OUTPUTS, _other_bits)
    first, second = (graphs.upload(_batch(length), INPUTS) for length in (18, 20))
    assert first is not None
    assert second is not None
    outputs = first.run()
    second.run()
    assert outputs["pooled"].tolist() == [171]


def test_a_graph_that_reads_parameters_of_the_latest_run_is_noticed(session: Session) -> None:
    graphs = _graphs(session)
    session.adds_parameter = True
    graphs.capture(_batch(20), INPUTS, OUTPUTS, _other_bits)
    for check in graphs.checks():
        check()
    assert graphs.checks() == []
    for lengths in ((20, 2), (40,), (80,)):
        graphs.capture(_batch(*lengths), INPUTS, OUTPUTS, _other_bits)
    first, *_ = graphs.checks()
    with pytest.raises(RuntimeError, match="other numbers than its first replay"):
        first()


def test_the_number_of_a_failed_capture_is_never_used_again(session: Session) -> None:
    graphs = _graphs(session)
    session.fails = True
    with pytest.raises(RuntimeError, match="capture failed"):
        graphs.capture(_batch(20), INPUTS, OUTPUTS, _other_bits)
    session.fails = False
    assert graphs.upload(_batch(20), INPUTS) is None
    graphs.capture(_batch(20), INPUTS, OUTPUTS, _other_bits)
    assert [*session.captured] == [2]


def test_dropped_graphs_run_no_further_batches(session: Session) -> None:
    graphs = _graphs(session)
    for lengths in ((20,), (40,), (80,)):
        graphs.capture(_batch(*lengths), INPUTS, OUTPUTS, _other_bits)
    graphs.drop(GraphShape(2, 64, 64))
    assert [graphs.upload(_batch(length), INPUTS) is None for length in (20, 40, 80)] == [False, True, False]
    graphs.drop()
    assert len(graphs) == 0
