"""Ask the NVIDIA driver about a GPU, and the operating system about the instructions of the processor."""

import ctypes
import sys
from pathlib import Path
from typing import Any, NamedTuple

CUDA_DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
# CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR.
_COMPUTE_CAPABILITY = (75, 76)


def processor_flags() -> frozenset[str]:
    """Return the processor's instruction sets, as /proc/cpuinfo names them; none except on Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line for line in lines if line.startswith("flags")), "").split())


def compute_capability(device: int) -> tuple[int, int] | None:
    """Return the compute capability of a GPU, for example (8, 0); None if the driver does not report it.

    The driver answers without opening a context, so the call takes no GPU memory.
    """
    driver, handle = _driver_and_handle(device)
    if driver is None:
        return None
    major, minor = ctypes.c_int(), ctypes.c_int()
    for value, attribute in zip((major, minor), _COMPUTE_CAPABILITY, strict=True):
        if driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, handle):
            return None
    return major.value, minor.value


class GpuMemory(NamedTuple):
    """The memory of a GPU in bytes; all processes on the GPU count."""

    used_bytes: int
    total_bytes: int


def gpu_memory(device: int) -> GpuMemory | None:
    """Return the memory of a GPU; None if this process does not use the GPU, or the driver does not answer."""
    driver, handle = _driver_and_handle(device)
    flags, active, context = ctypes.c_uint(), ctypes.c_int(), ctypes.c_void_p()
    if driver is None or driver.cuDevicePrimaryCtxGetState(handle, ctypes.byref(flags), ctypes.byref(active)):
        return None
    # The next call would open a context, which takes memory.
    if not active.value or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle):
        return None
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    try:
        if driver.cuCtxPushCurrent_v2(context):
            return None
        failed = driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        driver.cuCtxPopCurrent_v2(ctypes.byref(context))
    finally:
        driver.cuDevicePrimaryCtxRelease_v2(handle)
    return None if failed else GpuMemory(total.value - free.value, total.value)


def _driver_and_handle(device: int) -> tuple[Any, ctypes.c_int]:
    """Return the driver's library and its handle of a GPU; the library is None if there is no driver or no such GPU."""
    handle = ctypes.c_int()
    try:
        driver = ctypes.CDLL(CUDA_DRIVER)
    except OSError:
        return None, handle
    failed = driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(handle), device)
    return None if failed else driver, handle
