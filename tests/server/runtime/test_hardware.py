"""The driver tells the compute capability of a GPU, and makes a GPU the current one of a thread."""

import ctypes
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from headwaiter_server.runtime import io_binding
from headwaiter_server.runtime.hardware import compute_capability, select_gpu
from headwaiter_server.runtime.io_binding import DeviceMemorySession

_SUCCESS, _INVALID_DEVICE, _NO_DEVICE = 0, 101, 100
_CAPABILITIES = [{75: 8, 76: 9}, {75: 12, 76: 0}]


def _driver(init_status: int = _SUCCESS) -> SimpleNamespace:
    """Return a stand-in for the driver's library, with two GPUs."""

    def get(handle: Any, device: int) -> int:
        handle._obj.value = 40 + device
        return _SUCCESS if device < len(_CAPABILITIES) else _INVALID_DEVICE

    def get_attribute(value: Any, attribute: int, handle: Any) -> int:
        value._obj.value = _CAPABILITIES[handle.value - 40][attribute]
        return _SUCCESS

    def retain(context: Any, handle: Any) -> int:
        context._obj.value = 1000 + handle.value
        return _SUCCESS

    current: list[int] = []
    return SimpleNamespace(
        cuInit=lambda flags: init_status,
        cuDeviceGet=get,
        cuDeviceGetAttribute=get_attribute,
        cuDevicePrimaryCtxRetain=retain,
        cuCtxSetCurrent=lambda context: current.append(context.value),
        current=current,
    )


def test_the_driver_tells_the_compute_capability_of_each_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: _driver())
    assert [compute_capability(device) for device in range(3)] == [(8, 9), (12, 0), None]


def test_without_a_driver_or_a_gpu_the_compute_capability_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", lambda name: _driver(_NO_DEVICE))
    assert compute_capability(0) is None
    monkeypatch.setattr(ctypes, "CDLL", load)
    assert compute_capability(0) is None


def test_a_selected_gpu_is_the_current_one_and_a_missing_gpu_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = _driver()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    select_gpu(1)
    select_gpu(2)
    assert driver.current == [1041]


@pytest.mark.parametrize(("device_type", "device", "selections"), [("cuda", 3, 2), ("cuda", 0, 0), ("cpu", 0, 0)])
def test_each_thread_selects_a_gpu_other_than_0_once_before_it_copies_inputs(
    device_type: str, device: int, selections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    selected: list[int] = []
    monkeypatch.setattr(io_binding, "select_gpu", selected.append)
    binding = SimpleNamespace(copy_outputs_to_cpu=list, clear_binding_outputs=lambda: None)
    session: Any = SimpleNamespace(io_binding=lambda: binding, run_with_iobinding=lambda *_: None)
    in_device_memory = DeviceMemorySession(session, device_type, device)
    for _ in range(2):
        thread = threading.Thread(target=lambda: [in_device_memory.run([], {}) for _ in range(2)])
        thread.start()
        thread.join()
    assert selected == [device] * selections
