"""The GPU check on a machine without a GPU: graphs for CUDA and PyTorch run on the CPU.

`no_gpu` replaces ONNX Runtime's CUDA sessions in this process. As a program, this module is headwaiter-server with the
same replacement. Everything else is the code of the check and of the server.
"""

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, cycle
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from typing_extensions import override

from bench.gpu import calls, correctness, forms, long_sequences, models
from bench.gpu.cuda import Gpu, Kernel
from bench.gpu.routes import VARIABLE
from bench.gpu.settings import Effort
from bench.loads.traces import LogNormal
from headwaiter_export.checkpoints import weights
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_export.graphs import tracing
from headwaiter_export.graphs.packed_cuda import bias_heads
from headwaiter_export.graphs.portable import Portable
from headwaiter_server import cli
from headwaiter_server.models import calibration
from headwaiter_server.runtime import cuda_graphs, graph
from headwaiter_server.runtime.batch_timing import time_batch
from headwaiter_server.runtime.cuda_graphs import Upload
from headwaiter_server.runtime.shape_buckets import GRAPH_TOKENS
from tests.support.export.standard_attention import ATTENTION, open_with_standard_attention
from tests.support.oracle import Array


@dataclass
class Faults:
    """What goes wrong in the rehearsal; nothing by default.

    Attributes:
        unavailable: why the check cannot use the GPU.
        attention: the function in place of the operator of attention.
        kernel: the kernel that attention prints.
        memory_tokens: most tokens of a batch that fit into memory.
        changed: what replays of CUDA graphs add to values after the server's own checks.
        replays: how often CUDA graphs have run.
        seconds: how long a run takes, by a part of its name; 1 s for others.
        profiler_error: the error of the profiler; empty if it works.
    """

    unavailable: str = ""
    attention: str = ATTENTION
    kernel: str = "EFFICIENT_ATTENTION"
    memory_tokens: int = 1 << 30
    changed: float = 0.0
    replays: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    profiler_error: str = ""


class RehearsalGpu(Gpu):
    """A CPU in place of the GPU. Time is made up, so that no verdict depends on this machine."""

    device = torch.device("cpu")

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._used_mib = cycle((*[100.0] * 5, 200.0, 200.0))

    @property
    @override
    def server(self) -> Sequence[str]:
        return (sys.executable, "-m", "tests.support.gpu_check.rehearsal")

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
        return next((seconds for part, seconds in self._faults.seconds.items() if part in name), 1.0)

    @override
    def without_copies(
        self, session: Any, inputs: Mapping[str, NDArray[np.generic]], outputs: Sequence[str]
    ) -> Callable[[], object]:
        return partial(session.run, outputs, inputs)

    @override
    def used_mib(self) -> float:
        return next(self._used_mib)

    @override
    def kernels(self, run: Callable[[], object]) -> tuple[int, list[Kernel]]:
        if self._faults.profiler_error:
            raise RuntimeError(self._faults.profiler_error)
        before = self._faults.replays
        run()
        product = "gemm" if self._faults.replays == before else "other_gemm"
        return 1, [Kernel(product, 0.0, 60.0), Kernel("flash_fwd", 60.0, 80.0), Kernel("LayerNorm", 85.0, 100.0)]


class RehearsalSession:
    """A session of ONNX Runtime on CUDA: the same graph on the CPU."""

    def __init__(self, graph: Path, faults: Faults) -> None:
        self._session = open_with_standard_attention(graph, faults.attention)
        self.get_inputs, self.get_outputs = self._session.get_inputs, self._session.get_outputs
        self.faults = faults
        self._prints = os.environ.get(VARIABLE) == "1"
        self._operators = [node.op_type for node in onnx.load(graph, load_external_data=False).graph.node]

    def run(self, names: Sequence[str], feeds: Mapping[str, Array], options: object = None) -> list[Array]:
        rows = next(feeds[name] for name in ("input_ids", "features") if name in feeds)
        if len(rows) > self.faults.memory_tokens:
            raise RuntimeError("Failed to allocate memory for requested buffer of size 4294967296")
        if self._prints:
            for _ in range(self._operators.count("PackedMultiHeadAttention")):
                line = f"Operator=PackedMultiHeadAttention Node=n DataType=fp16 SdpaKernel={self.faults.kernel}\n"
                os.write(1, f"\x1b[36m{line}\x1b[0m".encode())
        return list(self._session.run(list(names), dict(feeds)))


# The server's own checks of a CUDA graph run it at most this often.
_CHECKED_RUNS = 3


class RehearsalReplay:
    """A CUDA graph that does what an ordinary run does, by another kernel for products."""

    def __init__(self, session: RehearsalSession, device: int, number: int, inputs: object, outputs: Iterable[str]):
        self._session, self._outputs, self._runs = session, list(outputs), 0

    def upload(self, inputs: Mapping[str, Array]) -> Upload:
        source: Any = self
        content: Any = inputs
        return Upload(source, content, inputs)

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        values = self._session.run(self._outputs, feeds)
        self._runs += 1
        self._session.faults.replays += 1
        if self._runs > _CHECKED_RUNS:
            values = [each + each.dtype.type(self._session.faults.changed) for each in values]
        return dict(zip(self._outputs, values, strict=True))


@contextmanager
def no_gpu(faults: Faults) -> Iterator[None]:
    """Put rehearsal sessions in the place of CUDA sessions, and calibrate for moments."""
    open_session = graph._open_on_provider

    def open_on_provider(model: str | bytes, provider: str, options: Any, *device: Any) -> Any:
        if provider != "cuda":
            return open_session(model, "cpu", options, *device)
        assert isinstance(model, str)
        return RehearsalSession(Path(model), faults)

    with (
        patch.object(graph, "require_cuda", lambda *device: None),
        patch.object(graph, "_open_on_provider", open_on_provider),
        patch.object(cuda_graphs, "Replay", RehearsalReplay),
        patch.object(calls, "_FRONT_ENDS", "2"),
        patch.object(calibration, "GRAPH_TOKENS", GRAPH_TOKENS[:1]),
        short_calibration(),
    ):
        yield


@contextmanager
def short_calibration() -> Iterator[None]:
    """Calibrate for moments, with small batches; each CUDA graph seems to be faster than an ordinary run."""
    seconds = count(1_000_000, -1)

    def faster_each_time(*arguments: Any) -> float:
        time_batch(*arguments)
        return float(next(seconds))

    with (
        patch.object(calibration, "time_batch", faster_each_time),
        patch.object(calibration, "_COMPARED_RUNS", 1),
        patch.dict(calibration._BUDGETS_S, cuda=0.1),
        patch.dict(calibration._LARGEST_BUDGET_TOKENS, cuda=512),
        patch.object(calibration, "_SHAPES_S", 0.1),
        patch.object(calibration, "_HIDDEN_ROWS_S", 0.01),
    ):
        yield


def reduced(config: EncoderConfig) -> EncoderConfig:
    """Return a tiny configuration of the same kind, of at most 64 tokens and one layer of each kind."""
    layers = 2 if config.local_layers else 1
    local = tuple(layer for layer in config.local_layers if layer < layers)
    tiny = replace(config, layers=layers, local_layers=local, max_tokens=64, window=min(config.window, 8))
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
    form_tokens=128,
    processes=0,
    full_batch_tokens=128,
    traces=2,
    batch_rounds=1,
    calls_s=0.2,
    callers=(1, 128),
    load_processes=2,
    lengths=LogNormal(12, 2, 64),
    reduce=reduced,
)


@contextmanager
def one_model(bundle: Path, encoder: Encoder, form: EncoderConfig | None = None) -> Iterator[None]:
    """Use an existing bundle for models without masks, because tracing a graph takes seconds; check one form."""

    def make(config: EncoderConfig, seed: int) -> Encoder:
        return weights.random_encoder(config, seed) if bias_heads(config) else encoder

    def write(model: Encoder, layout: Any, path: Path) -> None:
        if bias_heads(model.config):
            tracing.write_graph(model, layout, path)
            return
        precision = "fp16" if next(model.parameters()).dtype == torch.float16 else "fp32"
        # The bundle has no padded graph in fp16.
        kind = "portable" if (layout, precision) == (Portable, "fp32") else "packed-cuda"
        shutil.copy(bundle / f"{kind}.{precision}.onnx", path)
        shutil.copy(bundle / f"weights.{precision}.bin", path.parent)

    def copy_bundle(_encoder: Encoder, _text: object, folder: Path, *_: object, **__: object) -> None:
        shutil.copytree(bundle, folder)

    with ExitStack() as patches:
        for module, name, value in (
            (models, "random_encoder", make),
            (models, "write_graph", write),
            (models, "export_bundle", copy_bundle),
            (correctness, "full_size_models", lambda settings: [("model", encoder)]),
            (forms, "FORMS", {"form": form or encoder.config}),
            (long_sequences, "_BATCHES", long_sequences._BATCHES[:1]),
        ):
            patches.enter_context(patch.object(module, name, value))
        yield


@contextmanager
def pytorch_on_cpu() -> Iterator[None]:
    """Leave out what PyTorch can only do on a GPU."""
    with patch("torch.nn.attention.varlen.varlen_attn", varlen_attn):
        yield


def varlen_attn(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, starts: torch.Tensor, *_: object, **__: object
) -> torch.Tensor:
    """Compute attention without a mask, sequence by sequence."""
    lengths = starts.diff().tolist()
    heads = (torch.split(rows.transpose(0, 1), lengths, dim=1) for rows in (query, key, value))
    attend = torch.nn.functional.scaled_dot_product_attention
    return torch.cat([attend(q, k, v) for q, k, v in zip(*heads, strict=True)], dim=1).transpose(0, 1)


def main() -> int:
    """Serve as the command line says."""
    with no_gpu(Faults()):
        return cli.main()


if __name__ == "__main__":
    sys.exit(main())
