"""The driver tells the compute capability of a GPU."""

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from headwaiter_server.runtime.hardware import compute_capability

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

    return SimpleNamespace(cuInit=lambda flags: init_status, cuDeviceGet=get, cuDeviceGetAttribute=get_attribute)


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
