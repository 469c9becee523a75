"""The driver tells the compute capability and the memory of a GPU; the kernel tells the processor's instructions."""

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headwaiter_server.runtime.hardware import compute_capability, gpu_memory, processor_flags

_SUCCESS, _NO_DEVICE, _INVALID_DEVICE = 0, 100, 101
_CAPABILITIES = [{75: 8, 76: 9}, {75: 12, 76: 0}]


def _driver(memory_status: int = _SUCCESS) -> SimpleNamespace:
    """Return a stand-in for the driver's library, with two GPUs, of which the process uses the second."""
    current: list[int] = []

    def write(reference: Any, value: int, status: int = _SUCCESS) -> int:
        reference._obj.value = value
        return status

    def get_memory(free: Any, total: Any) -> int:
        assert current == [1041]
        write(free, 3 << 30)
        return write(total, 24 << 30, memory_status)

    return SimpleNamespace(
        cuInit=lambda flags: _SUCCESS,
        cuDeviceGet=lambda handle, device: write(handle, 40 + device, _SUCCESS if device < 2 else _INVALID_DEVICE),
        cuDeviceGetAttribute=lambda value, name, handle: write(value, _CAPABILITIES[handle.value - 40][name]),
        cuDevicePrimaryCtxGetState=lambda handle, flags, active: write(active, handle.value == 41),
        cuDevicePrimaryCtxRetain=lambda context, handle: write(context, 1000 + handle.value),
        cuDevicePrimaryCtxRelease_v2=lambda handle: _SUCCESS,
        cuCtxPushCurrent_v2=lambda context: current.append(context.value),
        cuCtxPopCurrent_v2=lambda context: current.pop(),
        cuMemGetInfo_v2=get_memory,
    )


def test_the_driver_tells_the_capability_of_each_gpu_and_the_memory_of_a_gpu_that_the_process_uses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: _driver())
    assert [compute_capability(device) for device in range(3)] == [(8, 9), (12, 0), None]
    assert [gpu_memory(device) for device in range(3)] == [None, (21 << 30, 24 << 30), None]
    monkeypatch.setattr(ctypes, "CDLL", lambda name: _driver(memory_status=_NO_DEVICE))
    assert gpu_memory(1) is None


def test_without_a_driver_or_a_gpu_the_compute_capability_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(cuInit=lambda flags: _NO_DEVICE))
    assert (compute_capability(0), gpu_memory(0)) == (None, None)
    monkeypatch.setattr(ctypes, "CDLL", load)
    assert (compute_capability(0), gpu_memory(0)) == (None, None)


def test_the_instructions_of_a_processor_are_words_of_its_first_line_of_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "processor\t: 0\nflags\t\t: fpu avx512_vnni amx_bf16\nvmx flags\t: ept\nprocessor\t: 1\nflags\t\t: fpu\n"
    monkeypatch.setattr(Path, "read_text", lambda path, encoding: {"/proc/cpuinfo": lines}[str(path)])
    assert processor_flags() >= {"fpu", "avx512_vnni", "amx_bf16"}
    assert "ept" not in processor_flags()


def test_without_proc_no_instructions_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: Path, encoding: str) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", missing)
    assert processor_flags() == frozenset()
