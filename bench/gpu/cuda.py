"""The GPU of the check, as PyTorch and ONNX Runtime see it."""

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from numpy.typing import NDArray

from headwaiter_server.runtime.errors import ProviderUnavailable
from headwaiter_server.runtime.graph import require_cuda

_PROFILED_RUNS = 50


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
        server: command that serves a bundle on this GPU; headwaiter-server if empty.
    """

    device = torch.device("cuda")
    server: Sequence[str] = ()

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

    def kernels_ms(self, run: Callable[[], object]) -> float:
        """Return the milliseconds that the GPU's kernels take in one run, without copies to and from the GPU.

        PyTorch's profiler uses CUPTI, which sees all GPU work of this process, including ONNX Runtime's. Kernels run
        one after another on one stream, so their times can be added.

        Raises:
            RuntimeError: the profiler saw no kernels.
        """
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            for _ in range(_PROFILED_RUNS):
                run()
        kernels: list[float] = [
            event.time_range.elapsed_us()
            for event in profiler.events() or ()
            if event.device_type.name == "CUDA" and not event.name.startswith(("Memcpy", "Memset"))
        ]
        if not kernels:
            raise RuntimeError("PyTorch's profiler saw no kernels of ONNX Runtime: check that CUPTI is installed")
        return sum(kernels) / _PROFILED_RUNS / 1e3


def _driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError) as error:
        return f"unknown: {error}"
