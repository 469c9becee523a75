"""The GPU check on a machine without a GPU: graphs for CUDA run in onnx's evaluator, and PyTorch on the CPU.

`no_gpu` replaces ONNX Runtime's CUDA sessions in this process. As a program, this module is headwaiter-server with the
same replacement. Everything else is the code of the check and of the server.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
import torch
from onnx.reference import ReferenceEvaluator
from typing_extensions import override

from bench.gpu.cuda import Gpu
from bench.gpu.routes import VARIABLE
from bench.gpu.settings import Effort
from bench.loads.traces import LogNormal
from headwaiter_export.config import EncoderConfig
from headwaiter_server import cli
from headwaiter_server.models import calibration
from headwaiter_server.runtime import graph
from tests.contrib_ops import CONTRIB_OPS
from tests.oracle import Array


@dataclass
class Faults:
    """What goes wrong in the rehearsal; nothing by default.

    Attributes:
        unavailable: why the check cannot use the GPU.
        operators: operators in place of those of tests/contrib_ops.py.
        kernel: the kernel that attention prints.
        memory_tokens: most tokens of a batch that fit into memory.
        optimized: changes the optimised graph.
        seconds: how long a run takes, by the start of its name; 1 s for others.
        used_mib: memory in use at each measurement.
        server: command of the server.
        profiler_error: the error of the profiler; empty if it works.
    """

    unavailable: str = ""
    operators: list[Any] = field(default_factory=lambda: CONTRIB_OPS)
    kernel: str = "EFFICIENT_ATTENTION"
    memory_tokens: int = 1 << 30
    optimized: Callable[[onnx.GraphProto], object] = lambda graph: None
    seconds: Mapping[str, float] = field(default_factory=dict)
    used_mib: Sequence[float] = (100.0, 200.0, 201.0)
    profiler_error: str = ""
    server: Sequence[str] = (sys.executable, "-m", "tests.bench.gpu.rehearsal")


class RehearsalGpu(Gpu):
    """A CPU in place of the GPU. Time is made up, so that no verdict depends on this machine."""

    device = torch.device("cpu")

    def __init__(self, faults: Faults) -> None:
        self.server = faults.server
        self._faults = faults
        self._used_mib = iter(faults.used_mib)

    @override
    def unavailable_reason(self) -> str:
        return self._faults.unavailable

    @override
    def describe(self) -> dict[str, str]:
        return {"GPU": "no GPU"}

    @override
    def upload(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    @override
    def seconds(self, name: str, run: Callable[[], object]) -> float:
        run()
        return next((seconds for start, seconds in self._faults.seconds.items() if name.startswith(start)), 1.0)

    @override
    def used_mib(self) -> float:
        return next(self._used_mib)

    @override
    def kernels_ms(self, run: Callable[[], object]) -> float:
        if self._faults.profiler_error:
            raise RuntimeError(self._faults.profiler_error)
        run()
        return 0.01


class _Node:
    def __init__(self, name: str) -> None:
        self.name = name


class RehearsalSession:
    """A session of ONNX Runtime on CUDA: the same graph in onnx's reference evaluator."""

    def __init__(self, path: Path, faults: Faults) -> None:
        self._evaluator = ReferenceEvaluator(str(path), new_ops=faults.operators)
        self._faults = faults
        self._prints = os.environ.get(VARIABLE) == "1"
        self._operators = [node.op_type for node in onnx.load(path, load_external_data=False).graph.node]

    def get_inputs(self) -> list[_Node]:
        return [_Node(name) for name in self._evaluator.input_names]

    def get_outputs(self) -> list[_Node]:
        return [_Node(name) for name in self._evaluator.output_names]

    def run(self, names: Sequence[str], feeds: Mapping[str, Array], options: object = None) -> list[Array]:
        if max(len(feeds[name]) for name in ("input_ids", "features") if name in feeds) > self._faults.memory_tokens:
            raise RuntimeError("Failed to allocate memory for requested buffer of size 4294967296")
        if self._prints:
            for _ in range(self._operators.count("PackedMultiHeadAttention")):
                line = f"Operator=PackedMultiHeadAttention Node=n DataType=fp16 SdpaKernel={self._faults.kernel}\n"
                os.write(1, f"\x1b[36m{line}\x1b[0m".encode())
        with np.errstate(over="ignore", invalid="ignore"):
            outputs: Any = self._evaluator.run(list(names), dict(feeds))
        return list(outputs)


@contextmanager
def no_gpu(faults: Faults) -> Iterator[None]:
    """Put rehearsal sessions in the place of CUDA sessions, and calibrate for moments."""
    open_session = graph._open_on_provider

    def open_on_provider(model: Path | str, provider: str, options: Any, *device: int) -> Any:
        if provider != "cuda":
            return open_session(str(model), "cpu", options, *device)
        if options.optimized_model_filepath:
            optimized = onnx.load(model, load_external_data=False)
            faults.optimized(optimized.graph)
            onnx.save(optimized, options.optimized_model_filepath)
        return RehearsalSession(Path(model), faults)

    with (
        patch.object(graph, "require_cuda", lambda *device: None),
        patch.object(graph, "_open_on_provider", open_on_provider),
        patch.dict(calibration._BUDGETS_S, cuda=0.1),
        patch.dict(calibration._LARGEST_BUDGET_TOKENS, cuda=512),
        patch.object(calibration, "_SHAPES_S", 0.1),
        patch.object(calibration, "_HIDDEN_ROWS_S", 0.01),
    ):
        yield


def reduced(config: EncoderConfig) -> EncoderConfig:
    """Return a tiny configuration of the same kind, of at most 64 tokens and one layer."""
    tiny = replace(config, layers=1, max_tokens=64)
    if not config.takes_tokens:
        return tiny
    return replace(tiny, vocabulary_size=512, d_model=32, heads=2, head_dim=16, value_dim=16, d_ff=64)


EFFORT = Effort(
    rounds=1,
    trace_tokens=512,
    ragged_tokens=256,
    batch_tokens=(64, 128),
    matrix=32,
    requests=10,
    shapes=5,
    full_batch_tokens=128,
    lengths=LogNormal(12, 2, 64),
    reduce=reduced,
)


def main() -> int:
    """Serve as the command line says."""
    with no_gpu(Faults()):
        return cli.main()


if __name__ == "__main__":
    sys.exit(main())
