"""The GPU of the check, as PyTorch and ONNX Runtime see it."""

import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime as ort
import torch
from numpy.typing import NDArray

from bench.processes import processor
from headwaiter_server.runtime.errors import ProviderUnavailable
from headwaiter_server.runtime.graph import require_cuda
from headwaiter_server.settings.environment import usable_processors

_PROFILED_RUNS = 10


class Kernel(NamedTuple):
    """A kernel that ran on the GPU: its name, and when it started and ended, in microseconds."""

    name: str
    started_us: float
    ended_us: float


@cache
def cuda_unavailable_reason() -> str:
    """Return ONNX Runtime's reason for not using CUDA; empty if it can use CUDA."""
    try:
        require_cuda()
    except ProviderUnavailable as error:
        return str(error)
    return ""


class Gpu:
    """Everything that the check asks of the first GPU. Tests replace this class with one that runs on a CPU.

    Attributes:
        device: device that runs PyTorch.
        server: command that serves a bundle on this GPU. The packages may be in a folder of their own, so there may be
            no script, and NVIDIA's libraries may be elsewhere, where only PyTorch finds them.
    """

    device = torch.device("cuda")

    @property
    def server(self) -> Sequence[str]:
        """See the attribute."""
        folders = [str(folder) for path in sys.path for folder in Path(path or ".").glob("nvidia/*/lib")]
        search = filter(None, [*folders, os.environ.get("LD_LIBRARY_PATH")])
        return ("env", f"LD_LIBRARY_PATH={os.pathsep.join(search)}", sys.executable, "-m", "headwaiter_server")

    def unavailable_reason(self) -> str:
        """Return why the check cannot run on this machine; empty if it can."""
        if torch.cuda.is_available():
            return cuda_unavailable_reason()
        problem = "is built without CUDA" if torch.version.cuda is None else "finds no usable GPU"
        return f"PyTorch {torch.__version__} {problem}: run on a machine with an NVIDIA GPU"

    def describe(self) -> dict[str, str]:
        """Return the name of the GPU under the key "GPU", its size, and the versions of its software."""
        properties = torch.cuda.get_device_properties(0)
        memory_gib = properties.total_memory / 2**30
        cudnn: Any = torch.backends.cudnn
        return {
            "GPU": properties.name,
            "its size": f"{memory_gib:.0f} GiB, {properties.multi_processor_count} multiprocessors",
            "compute capability": f"{properties.major}.{properties.minor}",
            "driver": _driver(),
            "PyTorch's CUDA, cuDNN": f"{torch.version.cuda}, {cudnn.version()}",
        }

    def upload(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy a tensor to the GPU without waiting; a copy from pageable memory would wait for all earlier work."""
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def seconds(self, name: str, run: Callable[[], object]) -> float:
        """Return the seconds of one run, including the GPU's work; `name` says what runs."""
        torch.cuda.synchronize()
        started_s = time.perf_counter()
        run()
        torch.cuda.synchronize()
        return time.perf_counter() - started_s

    def without_copies(
        self, session: ort.InferenceSession, inputs: Mapping[str, NDArray[np.generic]], outputs: Sequence[str]
    ) -> Callable[[], object]:
        """Copy inputs to the GPU, and return a function that runs a session on them and leaves the outputs there."""
        binding = session.io_binding()
        for name, array in inputs.items():
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array, "cuda", 0))
        for name in outputs:
            binding.bind_output(name, "cuda")
        return partial(session.run_with_iobinding, binding)

    def used_mib(self) -> float:
        """Return the GPU memory in use."""
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        return (total - free) / 2**20

    def kernels(self, run: Callable[[], object]) -> tuple[int, list[Kernel]]:
        """Run a function several times; return this number, and the GPU's kernels in the order of their starts.

        PyTorch's profiler uses CUPTI, which sees all GPU work of this process, including ONNX Runtime's and that of
        CUDA graphs. Copies between host and GPU are not kernels.

        Raises:
            RuntimeError: the profiler saw no kernels.
        """
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            for _ in range(_PROFILED_RUNS):
                run()
        kernels = [
            Kernel(event.name, event.time_range.start, event.time_range.end)
            for event in profiler.events() or ()
            if event.device_type.name == "CUDA" and not event.name.startswith(("Memcpy", "Memset"))
        ]
        if not kernels:
            raise RuntimeError("PyTorch's profiler saw no kernels of ONNX Runtime: check that CUPTI is installed")
        return _PROFILED_RUNS, sorted(kernels, key=lambda kernel: kernel.started_us)


def versions(gpu: Gpu) -> dict[str, str]:
    """Return processor, GPU and library versions by name."""
    wheels = sorted(f"{each.name} {each.version}" for each in distributions() if each.name.startswith("nvidia-"))
    return {
        "processor": f"{processor()}, {usable_processors()} cores",
        "Python": platform.python_version(),
        "ONNX Runtime": f"{ort.__version__}, built for CUDA {getattr(ort, 'cuda_version', '') or 'none'}",
        "PyTorch": str(torch.__version__),
        "CUDA's libraries from pip": ", ".join(wheels) or "none",
        **gpu.describe(),
    }


def _driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError) as error:
        return f"unknown: {error}"
