"""The machine of a check: GPU, library versions, and the attention kernels that ONNX Runtime chooses."""

import platform
from dataclasses import replace
from importlib.metadata import distributions

import onnxruntime as ort
import torch

from bench.findings import Findings
from bench.gpu.cuda import Gpu
from bench.gpu.models import BERT_BASE, random_model, served_plan, write
from bench.gpu.routes import find_routes, packed_attention, printed_kernels
from bench.gpu.settings import PRECISIONS, Settings
from bench.report.tables import processor
from headwaiter_server.runtime.graph import EncoderGraph
from headwaiter_server.settings.environment import usable_processors


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


def environment(settings: Settings, findings: Findings) -> None:
    """Find the attention kernels of the timed model for short and long sequences; one layer stands for all layers."""
    encoder = random_model(replace(BERT_BASE, layers=1), settings)
    for precision in PRECISIONS:
        layout = served_plan(precision).layout
        label = f"{layout.__name__}, {precision}"
        with findings.attempt(label), printed_kernels() as printed:
            path = write(encoder, layout, precision, settings.folder / f"{label}.onnx")
            graph = EncoderGraph.open(path, "cuda", attention=packed_attention(encoder.config, precision))
            find_routes(label, graph, printed, encoder.config, precision, findings)
