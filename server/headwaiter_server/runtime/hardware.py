"""What the speed of a model depends on beside the model: the machine, and ONNX Runtime."""

import os
import platform
from pathlib import Path

import onnxruntime as ort

_CPU_INFO = Path("/proc/cpuinfo")
_CARDS = Path("/proc/driver/nvidia/gpus")


def describe_hardware() -> dict[str, str | int]:
    """Name the processor, how many of it this process may use, the NVIDIA cards, and ONNX Runtime's version."""
    cards = [_value(card / "information", "Model") for card in sorted(_CARDS.glob("*"))]
    return {
        "processor": _value(_CPU_INFO, "model name") or platform.processor() or platform.machine(),
        "processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "cards": ", ".join(cards),
        "onnxruntime": ort.__version__,
    }


def _value(file: Path, name: str) -> str:
    """Return the first value of a name in a file of lines `name: value`; nothing where there is none."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == name), "")
