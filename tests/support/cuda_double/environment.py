"""The environment of a process that runs on the double."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.cuda_double.build import LIBRARIES, build
from tests.support.cuda_double.controls import Controls
from tests.support.cuda_double.log import Log
from tests.support.documents import ROOT

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
) -> Double:
    """Return a double of CUDA with its log and control file in an existing folder; compile the double if necessary.

    Args:
        folder: an existing folder, of one test.
        devices: number of devices, at most 16.
        memory_gib: memory of each device; the last value of a sequence is also that of the remaining devices.
        capability: compute capability of each device.
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
    }
    return Double(environment, Log(log), Controls(controls))


def run_on(double: Double, module: str, *arguments: str) -> Any:
    """Run a module of this folder in a process on the double; return what the module prints, read as JSON."""
    command = [sys.executable, "-m", f"tests.support.cuda_double.{module}", *arguments]
    printed = subprocess.run(command, env=double.environment, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    return json.loads(printed)


def _join(values: float | str | Sequence[float] | Sequence[str]) -> str:
    return str(values) if isinstance(values, float | int | str) else ",".join(map(str, values))
