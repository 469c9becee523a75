"""The environment of a process that runs on the double.

The variables CUDA_DOUBLE_HANG, _VANISHED, _LAUNCH_ERROR, _LAUNCHES_BEFORE_ERROR, _ALLOCATION_FAILURES,
_ALLOCATIONS_BEFORE_FAILURE and _LARGEST_ALLOCATION set the controls when a process starts. Each holds one number per
device, with commas between them; the last number is also that of the remaining devices. Without a control file, they
are the only way to make a device fail.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.cuda_double.build import LIBRARIES, build
from tests.support.cuda_double.controls import Controls
from tests.support.cuda_double.log import Log

_PREFIX = "CUDA_DOUBLE_"


@dataclass(frozen=True)
class Double:
    """The files that connect a test with the processes that run on the double.

    Attributes:
        environment: all environment variables of such a process.
        log: what the processes did.
        controls: make the devices fail, also while the processes run.
    """

    environment: Mapping[str, str]
    log: Log
    controls: Controls


def double_in(
    folder: Path,
    *,
    devices: int = 1,
    memory_gib: float | Sequence[float] = 80,
    capability: str | Sequence[str] = "9.0",
    name: str | Sequence[str] = "",
) -> Double:
    """Return a double of CUDA with its log and control file in an existing folder; compile the double if necessary.

    Args:
        folder: an existing folder, of one test.
        devices: number of devices, at most 16.
        memory_gib: memory of each device; the last value of a sequence is also that of the remaining devices.
        capability: compute capability of each device.
        name: name of each device; empty for the name of a card with this capability.
    """
    libraries = str(build())
    log, controls = folder / "cuda.log", folder / "cuda.controls"
    log.touch()
    inherited = {variable: value for variable, value in os.environ.items() if not variable.startswith(_PREFIX)}
    search_path = [libraries, *filter(None, [inherited.get("LD_LIBRARY_PATH")])]
    environment = {
        **inherited,
        "LD_LIBRARY_PATH": os.pathsep.join(search_path),
        # Where NVIDIA's libraries are installed, ONNX Runtime loads them by their paths: libraries loaded earlier win.
        "LD_PRELOAD": os.pathsep.join(f"{libraries}/{library}" for library in LIBRARIES),
        f"{_PREFIX}LOG": str(log),
        f"{_PREFIX}CONTROLS": str(controls),
        f"{_PREFIX}DEVICES": str(devices),
        f"{_PREFIX}MEMORY_GIB": _join(memory_gib),
        f"{_PREFIX}CAPABILITY": _join(capability),
        f"{_PREFIX}NAME": _join(name),
    }
    return Double(environment, Log(log), Controls(controls))


def _join(values: float | str | Sequence[float] | Sequence[str]) -> str:
    return str(values) if isinstance(values, float | int | str) else ",".join(map(str, values))
