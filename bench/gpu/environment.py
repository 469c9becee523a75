"""The machine of a check: GPU, library versions, and the attention kernels that ONNX Runtime chooses."""

import platform
import subprocess
from dataclasses import replace
from importlib.metadata import distributions
from typing import Any

import onnxruntime as ort
import torch

from bench.findings import Findings
from bench.gpu.cuda import cuda_unavailable_reason
from bench.gpu.models import BERT_BASE, random_model, served_plan, write
from bench.gpu.routes import SEQUENCES, attention_routes
from bench.gpu.settings import Settings
from headwaiter_server.runtime.graph import Provider
from headwaiter_server.runtime.hardware import describe_hardware

# Short, medium and long sequences, for which ONNX Runtime may choose different kernels.
_KERNEL_TOKENS = (32, 200, 512)


def gpu_unavailable_reason() -> str:
    """Return why this machine cannot run the check with --provider cuda; empty if it can."""
    if torch.cuda.is_available():
        return cuda_unavailable_reason()
    problem = "is built without CUDA" if torch.version.cuda is None else "finds no usable GPU"
    return f"PyTorch {torch.__version__} {problem}: run on a machine with an NVIDIA GPU, or with --provider cpu"


def versions(provider: Provider) -> dict[str, str]:
    """Return processor, GPU and library versions by name."""
    machine = describe_hardware()
    wheels = sorted(f"{each.name} {each.version}" for each in distributions() if each.name.startswith("nvidia-"))
    known = {
        "processor": f"{machine['processor']}, {machine['processors']} cores",
        "Python": platform.python_version(),
        "ONNX Runtime": f"{ort.__version__}, built for CUDA {getattr(ort, 'cuda_version', '') or 'none'}",
        "PyTorch": str(torch.__version__),
        "CUDA's libraries from pip": ", ".join(wheels) or "none",
    }
    return known | _gpu() if provider == "cuda" else known | {"GPU": "not used"}


def environment(settings: Settings, findings: Findings) -> None:
    """Find the attention kernels for short and long sequences."""
    findings.record("models", "tiny, because there is no GPU" if settings.tiny else "full size")
    if settings.provider != "cuda":
        findings.skip("attention kernel", "no GPU is used")
        return
    # All layers use the same kernel. The kernel may depend on head_dim, so the shape is the one that is timed.
    encoder = random_model(replace(BERT_BASE, layers=1), settings)
    for precision in settings.precisions:
        layout = served_plan(settings, precision).layout
        label = f"attention kernel, {layout.__name__}, {precision}"
        with findings.attempt(label):
            path = write(encoder, layout, precision, settings.folder / f"{label}.onnx")
            for tokens, kernel in attention_routes(path, settings.provider, _KERNEL_TOKENS).items():
                findings.record(f"{label}, {SEQUENCES} × {tokens} tokens", kernel)


def _gpu() -> dict[str, str]:
    properties = torch.cuda.get_device_properties(0)
    memory_gib = properties.total_memory / 2**30
    cudnn: Any = torch.backends.cudnn
    return {
        "GPU": f"{properties.name}, {memory_gib:.0f} GiB, {properties.multi_processor_count} multiprocessors",
        "compute capability": f"{properties.major}.{properties.minor}",
        "driver": _driver(),
        "PyTorch's CUDA, cuDNN": f"{torch.version.cuda}, {cudnn.version()}",
    }


def _driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError) as error:
        return f"unknown: {error}"
