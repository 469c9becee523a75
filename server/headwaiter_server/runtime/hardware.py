"""Describe the hardware and the version of ONNX Runtime, which determine the speed of a model."""

import os
import platform
from pathlib import Path

import onnxruntime as ort

_CPU_INFO = Path("/proc/cpuinfo")
_NVIDIA_GPUS = Path("/proc/driver/nvidia/gpus")


def describe_hardware() -> dict[str, str | int]:
    """Return the processor's name, the number of usable processors, the NVIDIA GPUs and ONNX Runtime's version."""
    gpus = [_read_field(gpu / "information", "Model") for gpu in sorted(_NVIDIA_GPUS.glob("*"))]
    return {
        "processor": _read_field(_CPU_INFO, "model name") or platform.processor() or platform.machine(),
        "processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "cards": ", ".join(gpus),
        "onnxruntime": ort.__version__,
    }


def _read_field(file: Path, name: str) -> str:
    """Return the first value of a field in a file of lines `field: value`; "" without the file or the field."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == name), "")
