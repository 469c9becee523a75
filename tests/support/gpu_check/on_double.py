"""The GPU check on the double of CUDA: ONNX Runtime's real CUDA provider, with kernels that compute nothing.

All numbers are wrong. Exported and served models are not checked, so that they run; the check itself finds the errors.

python -m tests.support.gpu_check.on_double rehearse FOLDER BUNDLE CHECKPOINT
    Run the check three times: all parts, then without enough memory, then on a GPU that hangs. Each run writes its
    findings to FOLDER. The models are those of `one_model`.
python -m tests.support.gpu_check.on_double all FOLDER
    Run all parts with the real models, reduced, with servers, with the times of this machine, and with processes that
    write the graphs of all forms; graphs are timed although their answers are wrong.
python -m tests.support.gpu_check.on_double check PART
    Run one part with the real models, reduced.
python -m tests.support.gpu_check.on_double serve ARGUMENTS
    Serve as headwaiter-server.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray
from torch.onnx._internal.exporter._registration import ONNXRegistry
from typing_extensions import override

from bench.gpu import __main__ as check
from bench.gpu import batches, calls, graphs, rotary
from bench.gpu.cuda import Gpu, Kernel, cuda_unavailable_reason
from bench.gpu.forms import FORMS
from bench.gpu.settings import Effort, Settings
from headwaiter_export.bundle import verification
from headwaiter_export.checkpoints.reader import read_checkpoint
from headwaiter_server import cli
from headwaiter_server.models import calibration
from headwaiter_server.runtime import cuda_graphs, model
from headwaiter_server.runtime.numeric_tolerances import Difference
from tests.support.cuda_double.controls import Controls
from tests.support.gpu_check.rehearsal import EFFORT, Faults, RehearsalGpu, one_model, pytorch_on_cpu, short_calibration

_NO_DIFFERENCE = Difference(0.0, 0.0, 0.0, 0.0, 1.0, 1.0)
_TWO_KERNELS = "local and global layers, as ModernBERT"
_NO_SERVER = ("false",)
_SERVER = (sys.executable, "-m", "tests.support.gpu_check.on_double", "serve")
HANG_BUDGET_S = 4.0
_NO_BUDGET_S = 3600.0
# Less than the arena's first region.
_LARGEST_ALLOCATION = 1 << 10


class DoubleGpu(RehearsalGpu):
    """The double's first device; PyTorch runs on the CPU, and time is made up."""

    def __init__(self, server: Sequence[str]) -> None:
        super().__init__(Faults(server=server))
        self.controls = Controls(Path(os.environ["CUDA_DOUBLE_CONTROLS"]))

    @override
    def unavailable_reason(self) -> str:
        return cuda_unavailable_reason()

    @override
    def without_copies(
        self, session: Any, inputs: Mapping[str, NDArray[np.generic]], outputs: Sequence[str]
    ) -> Callable[[], object]:
        return Gpu.without_copies(self, session, inputs, outputs)

    @override
    def used_mib(self) -> float:
        return self.controls.bytes_in_use() / 2**20

    @override
    def kernels(self, run: Callable[[], object]) -> tuple[int, list[Kernel]]:
        """Return a kernel of 1 µs for each launch."""
        before = self.controls.launches()
        run()
        return 1, [Kernel("launch", start, start + 1) for start in range(self.controls.launches() - before)]


class TimedDoubleGpu(DoubleGpu):
    """The double's first device, with the times of this machine."""

    @override
    def seconds(self, name: str, run: Callable[[], object]) -> float:
        started_s = time.perf_counter()
        run()
        return time.perf_counter() - started_s


@contextmanager
def numbers_not_checked() -> Iterator[None]:
    """Export and serve models although their numbers are wrong."""
    with (
        patch.object(verification, "violation", lambda *_: None),
        patch.object(model, "check_golden", lambda *_, **__: _NO_DIFFERENCE),
        patch.object(calibration, "violation", lambda *_: None),
        patch.object(graphs, "violation", lambda *_: None),
        patch.object(cuda_graphs, "same_bits", lambda *_: True),
        short_calibration(),
    ):
        yield


@contextmanager
def cached_registry() -> Iterator[None]:
    """Read the operator registry of PyTorch's exporter once; otherwise this takes a fifth of each export."""
    with patch.object(ONNXRegistry, "from_torchlib", staticmethod(cache(ONNXRegistry.from_torchlib))):
        yield


def run(gpu: DoubleGpu, parts: Sequence[str], findings: Path, effort: Effort = EFFORT, **options: Any) -> int:
    """Run parts of the check, or all, and return the exit status."""
    with numbers_not_checked(), pytorch_on_cpu(), cached_registry():
        return check.main(
            [*parts, "--json", str(findings), "--model", "missing"],
            lambda _, checkpoint, folder: Settings(effort, checkpoint, folder, gpu),
            **options,
        )


def rehearse(folder: Path, bundle: Path, checkpoint: Path) -> int:
    """Run the check three times; the last run ends the process."""
    gpu = DoubleGpu(_NO_SERVER)
    with one_model(bundle, read_checkpoint(checkpoint).encoder, FORMS[_TWO_KERNELS]):
        run(gpu, [], folder / "all.json")
        gpu.controls.limit_allocations(_LARGEST_ALLOCATION)
        run(gpu, ["kernels"], folder / "memory.json")
        gpu.controls.limit_allocations(0)
        gpu.controls.hang()
        return run(gpu, ["kernels"], folder / "hang.json", budget_s=HANG_BUDGET_S)


def main() -> int:
    """Do what the first argument says."""
    command, *arguments = sys.argv[1:]
    if command == "serve":
        sys.argv[1:] = arguments
        with numbers_not_checked():
            return cli.main()
    if command == "rehearse":
        return rehearse(*map(Path, arguments))
    if command == "all":
        with (
            patch.object(batches, "check_answers"),
            patch.object(rotary, "check_answers"),
            patch.object(calls, "_FRONT_ENDS", "2"),
        ):
            effort, findings = replace(EFFORT, processes=2), Path(arguments[0]) / "all.json"
            # The budgets are those of a GPU on an idle host.
            return run(TimedDoubleGpu(_SERVER), [], findings, effort, now_s=lambda: 0.0, budget_s=_NO_BUDGET_S)
    return run(DoubleGpu(_SERVER), arguments, Path(os.devnull))


if __name__ == "__main__":
    sys.exit(main())
