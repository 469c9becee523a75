"""What the check runs on: the card, the libraries, and the way that attention takes through them."""

import ctypes
import platform
import subprocess
from contextlib import redirect_stdout
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import onnxruntime as ort
import torch

from bench.gpu.card import why_no_cuda
from bench.gpu.findings import Findings
from bench.gpu.models import BERT_BASE, random_model, served_plan, write
from bench.gpu.routes import SEQUENCES, attention_routes
from bench.gpu.setting import Setting
from headwaiter_export.attention_layout_cuda import GatheredCuda
from headwaiter_server.runtime.graph import Provider
from headwaiter_server.runtime.hardware import describe_hardware

_WHEELS = ("cublas", "cuda-runtime", "cuda-nvrtc", "cudnn-cu13", "cufft", "curand")
# Below, at and beyond the lengths where a route may change.
_ROUTE_TOKENS = (32, 200, 512)
_CAPI = Path(ort.__file__).parent / "capi"


def why_no_card() -> str:
    """Return in a sentence why this machine cannot be checked with --provider cuda; empty where it can."""
    if torch.cuda.is_available():
        return why_no_cuda()
    build = "is built without CUDA" if torch.version.cuda is None else "finds no card that it can use"
    return f"PyTorch {torch.__version__} {build}: run on a machine with an NVIDIA card, or with --provider cpu"


def versions(provider: Provider) -> dict[str, str]:
    """Name what every figure depends on: processor, card, and the versions of what runs on them."""
    machine = describe_hardware()
    named = {
        "processor": f"{machine['processor']}, {machine['processors']} cores",
        "Python": platform.python_version(),
        "ONNX Runtime": f"{ort.__version__}, built for CUDA {getattr(ort, 'cuda_version', '') or 'none'}",
        "PyTorch": str(torch.__version__),
        "CUDA's libraries from pip": _wheels() or "none",
    }
    return named | _card() if provider == "cuda" else named | {"card": "none in use"}


def environment(setting: Setting, findings: Findings) -> None:
    """See whether ONNX Runtime's library loads, and ask for the route of attention in short and in long sequences."""
    findings.see("ONNX Runtime's CUDA library", _load_cuda_library())
    findings.see("models", "reduced to next to nothing, as there is no card" if setting.tiny else "in full size")
    if setting.provider == "cuda":
        _routes(setting, findings)
    else:
        findings.skip("route of attention", "there is no card in use")


def _card() -> dict[str, str]:
    properties = torch.cuda.get_device_properties(0)
    memory_gib = properties.total_memory / 2**30
    cudnn: Any = torch.backends.cudnn
    return {
        "card": f"{properties.name}, {memory_gib:.0f} GiB, {properties.multi_processor_count} multiprocessors",
        "compute capability": f"{properties.major}.{properties.minor}",
        "driver": _driver(),
        "PyTorch's CUDA, cuDNN": f"{torch.version.cuda}, {cudnn.version()}",
    }


def _driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError) as error:
        return f"not known: {error}"


def _routes(setting: Setting, findings: Findings) -> None:
    # All layers take the same route. The shape is the one that is timed: a route may hang on the size of a head.
    encoder = random_model(replace(BERT_BASE, layers=1), setting)
    for precision in setting.precisions:
        for lowering in (served_plan(setting, precision).lowering, GatheredCuda):
            what = f"route of attention, {lowering.__name__}, {precision}"
            with findings.attempt(what):
                path = write(encoder, lowering, precision, setting.folder / f"{what}.onnx")
                for tokens, route in attention_routes(path, setting.provider, _ROUTE_TOKENS).items():
                    findings.see(f"{what}, {SEQUENCES} × {tokens} tokens", route)


def _load_cuda_library() -> str:
    """Return whether ONNX Runtime's CUDA library loads with what pip has installed; else what was not found first."""
    library = _CAPI / "libonnxruntime_providers_cuda.so"
    if not library.is_file():
        return "this build has none"
    with redirect_stdout(None):  # It prints what it does not find, and the loader says so below.
        ort.preload_dlls()
    try:
        # What it takes from the other one is only known to those who look for all names.
        ctypes.CDLL(str(_CAPI / "libonnxruntime_providers_shared.so"), ctypes.RTLD_GLOBAL)
        ctypes.CDLL(str(library))
    except OSError as error:
        return f"not loaded: {error}"
    return "loads"


def _wheels() -> str:
    found = []
    for name in _WHEELS:
        try:
            found.append(f"{name} {version(f'nvidia-{name}')}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)
