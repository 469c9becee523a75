"""Call the double's CUDA runtime without ONNX Runtime, as a process of its own: print what happened as JSON."""

import ctypes
import json
from typing import Any

GLOBAL_CAPTURE, RELAXED_CAPTURE = 0, 2
runtime = ctypes.CDLL("libcudart.so.13")
runtime.cudaGetErrorName.restype = ctypes.c_char_p
runtime.cudaGetErrorString.restype = ctypes.c_char_p


class _Size(ctypes.Structure):
    _fields_ = (("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint))


def allocate(size: int) -> tuple[int, ctypes.c_void_p]:
    """Allocate device memory: return the error and the address."""
    address = ctypes.c_void_p()
    return runtime.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(size)), address


def launch(grid: tuple[int, int, int], block: tuple[int, int, int], shared: int = 0, stream: Any = None) -> int:
    """Launch a kernel that no library has registered: return the error."""
    function = ctypes.c_void_p(1)
    return int(runtime.cudaLaunchKernel(function, _Size(*grid), _Size(*block), None, ctypes.c_size_t(shared), stream))


def free_and_total() -> list[int]:
    """Return the free and the total bytes of the current device."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    runtime.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total))
    return [free.value, total.value]


def capture(mode: int, call: str) -> list[int]:
    """Capture a launch and another call: return the errors of the call and of the end, and the status before it."""
    stream, graph, status = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
    runtime.cudaStreamCreateWithFlags(ctypes.byref(stream), 1)
    runtime.cudaStreamBeginCapture(stream, mode)
    launch((1, 1, 1), (1, 1, 1), stream=stream)
    error = allocate(1024)[0] if call == "cudaMalloc" else getattr(runtime, call)(stream)
    runtime.cudaStreamIsCapturing(stream, ctypes.byref(status))
    return [error, runtime.cudaStreamEndCapture(stream, ctypes.byref(graph)), status.value]


def main() -> None:
    """Make calls of all kinds on two devices."""
    found: dict[str, Any] = {"memory": [free_and_total()]}
    kept, address = allocate(1 << 20)
    found["memory"].append(free_and_total())
    written, read = ctypes.create_string_buffer(b"text", 8), ctypes.create_string_buffer(8)
    runtime.cudaMemset(address, 255, ctypes.c_size_t(8))
    runtime.cudaMemcpy(address, written, ctypes.c_size_t(4), 1)
    runtime.cudaMemcpy(read, address, ctypes.c_size_t(8), 2)
    found["copied"] = read.raw.hex()
    found["copy beyond the end"] = runtime.cudaMemcpy(address, written, ctypes.c_size_t(2 << 20), 1)
    found["free"] = [kept, runtime.cudaFree(address), runtime.cudaFree(address)]
    found["memory"].append(free_and_total())
    found["too large"] = allocate(2 << 30)[0]
    found["names"] = [
        [runtime.cudaGetErrorName(code).decode(), runtime.cudaGetErrorString(code).decode()] for code in (2, 700, 12345)
    ]
    found["launches"] = [
        launch((1, 1, 1), (256, 1, 1)),
        launch((1, 65536, 1), (32, 1, 1)),
        launch((1, 0, 1), (32, 1, 1)),
        launch((1, 1, 1), (1024, 2, 1)),
        launch((1, 1, 1), (32, 1, 1), shared=49153),
    ]
    found["last error"] = [runtime.cudaGetLastError(), runtime.cudaGetLastError()]
    found["captures"] = [
        capture(GLOBAL_CAPTURE, "cudaMalloc"),
        capture(RELAXED_CAPTURE, "cudaMalloc"),
        capture(RELAXED_CAPTURE, "cudaStreamSynchronize"),
    ]
    runtime.cudaSetDevice(1)
    found["poisoned"] = [launch((1, 1, 1), (1, 1, 1)), launch((1, 1, 1), (1, 1, 1)), runtime.cudaDeviceSynchronize()]
    found["other device"] = runtime.cudaSetDevice(0)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
