"""The GPU check runs on the double of CUDA with ONNX Runtime's real provider, and finds that all numbers are wrong."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.findings import Finding
from bench.gpu.__main__ import PARTS
from bench.gpu.decisions import GOALS, PLACES
from bench.gpu.forms import FORMS
from bench.gpu.models import ROTARY_SHAPES
from tests.support.cuda_double import build
from tests.support.cuda_double.environment import double_in

pytestmark = pytest.mark.usefixtures("starts_processes", "runs_graphs")

_REPOSITORY = Path(__file__).parents[3]
# What compares numbers with PyTorch.
_NUMBERS = ("largest difference", "smallest cosine", "relative error", "largest relative error of 1,024 rows")
_SERVERS = {
    *("by default", "without front ends", "with two instances", "without CUDA graphs"),
    *("a server with --warm-up on", "a server with --warm-up off"),
}

if reason := build.why_unavailable():
    pytest.skip(reason, allow_module_level=True)


@dataclass(frozen=True)
class Finished:
    """A process on the double that has ended: its exit status, what it printed, and the findings of each run."""

    status: int
    errors: str
    found: Mapping[str, Sequence[Finding]]

    def errors_of(self, run: str) -> set[str]:
        return {finding.name for finding in self.found[run] if finding.is_error}

    def wrong_of(self, run: str) -> set[str]:
        return {finding.name for finding in self.found[run] if finding.fails and not finding.is_error}

    def numbers(self, run: str) -> dict[str, float]:
        return {finding.name: finding.number for finding in self.found[run]}

    def routes(self, run: str) -> list[Finding]:
        return [finding for finding in self.found[run] if "attention route" in finding.name]


def run_on_double(folder: Path, environment: Mapping[str, str], *arguments: str | Path) -> Finished:
    command = [sys.executable, "-m", "tests.support.gpu_check.on_double", *map(str, arguments)]
    process = subprocess.run(
        command,
        env=environment,
        cwd=_REPOSITORY,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    found = {file.stem: _read(file) for file in folder.glob("*.json")}
    return Finished(process.returncode, process.stderr, found)


def _read(file: Path) -> list[Finding]:
    findings = json.loads(file.read_text(encoding="utf-8"))["findings"]
    return [Finding(**{name: each[name] for name in each.keys() - {"verdict"}}) for each in findings]


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory, text_bundle: Path, text_checkpoint: Path) -> Finished:
    """Three runs of the check: all parts, without enough memory, and on a GPU that hangs."""
    folder = tmp_path_factory.mktemp("rehearsal")
    environment = double_in(folder).environment
    return run_on_double(folder, environment, "rehearse", folder, text_bundle, text_checkpoint)


@pytest.mark.exhaustive
def test_every_part_runs_to_its_end(rehearsed: Finished) -> None:
    assert {finding.part for finding in rehearsed.found["all"]} == {*PARTS, "all parts"}
    # There is no server in this rehearsal, and graphs with wrong answers are not timed.
    assert rehearsed.errors_of("all") == {*_SERVERS, "batches", *ROTARY_SHAPES}
    assert not [finding for finding in rehearsed.found["all"] if finding.measured is None and not finding.is_error]


@pytest.mark.exhaustive
def test_wrong_numbers_fail_and_nothing_else(rehearsed: Finished) -> None:
    wrong = rehearsed.wrong_of("all")
    in_process = {name for name in wrong if name.startswith("throughput in process / ")}
    assert {name.rpartition(": ")[2].rpartition(", ")[2] for name in wrong - in_process} == {*_NUMBERS}
    for part in ("model", "form", "causal, 1 × 64 tokens × 16 heads"):
        for precision in ("fp32", "fp16"):
            assert any(name.startswith(f"{part}, {precision}") for name in wrong)


@pytest.mark.exhaustive
def test_the_provider_uses_the_predicted_kernels(rehearsed: Finished) -> None:
    routes = rehearsed.routes("all")
    assert [finding.verdict for finding in routes] == ["holds"] * len(routes)
    assert {finding.measured for finding in routes} == {"memory-efficient", "flash", "flash, memory-efficient"}


@pytest.mark.exhaustive
def test_memory_kernels_and_graphs_are_those_of_the_double(rehearsed: Finished) -> None:
    numbers = rehearsed.numbers("all")
    # The arena's regions are whole MiB.
    assert numbers["GPU memory after warm-up, MiB"] >= 1
    assert numbers["CUDA graphs"] > 10
    assert numbers["1 × 32 tokens: kernels"] > 10
    assert any(name.startswith("1 × 32 tokens: copies of 6 inputs") for name in numbers)


@pytest.mark.exhaustive
def test_a_lack_of_memory_is_an_error_of_each_measurement(rehearsed: Finished) -> None:
    assert rehearsed.errors_of("memory") == {"a full batch", "1 × 32 tokens", "21 texts"}
    assert all("AllocateRaw" in finding.reason for finding in rehearsed.found["memory"] if finding.is_error)


@pytest.mark.exhaustive
def test_a_hang_ends_the_check_and_what_was_measured_is_printed(rehearsed: Finished) -> None:
    (hang,) = rehearsed.found["hang"]
    assert rehearsed.status == 1
    assert (hang.name, hang.is_error) == ("duration, s", True)
    assert "a call has not returned 4 s after the start" in rehearsed.errors
    # The stack of the thread that waits for the GPU.
    assert "in open_session" in rehearsed.errors
    assert "| part | name | measured | required | verdict |" in rehearsed.errors


@pytest.mark.exhaustive
@pytest.mark.usefixtures("starts_processes")
def test_a_missing_library_is_named_before_the_first_part(tmp_path: Path) -> None:
    environment = dict(double_in(tmp_path).environment)
    missing, folder = "libcublasLt.so.13", tmp_path / "libraries"
    folder.mkdir()
    kept = [name for name in build.LIBRARIES if name != missing]
    for name in (*kept, build.CORE):
        (folder / name).symlink_to(build.build() / name)
    environment["LD_LIBRARY_PATH"] = str(folder)
    environment["LD_PRELOAD"] = os.pathsep.join(str(folder / name) for name in kept)
    finished = run_on_double(tmp_path, environment, "check", "kernels")
    assert finished.status == 1
    assert f"gpu-check: ONNX Runtime could not load its CUDA provider ({missing}" in finished.errors
    assert not finished.found


@pytest.mark.exhaustive
@pytest.mark.usefixtures("starts_processes")
@pytest.mark.timeout(900)  # Traces the graphs of all forms, and starts servers: minutes.
def test_all_forms_use_the_predicted_kernels_and_servers_start(tmp_path: Path) -> None:
    finished = run_on_double(tmp_path, double_in(tmp_path).environment, "all", tmp_path)
    routes = finished.routes("all")
    assert {finding.name.split(", fp")[0] for finding in routes} >= FORMS.keys()
    assert [finding.name for finding in routes if finding.fails] == []
    assert {"gathered", "flash", "flash, memory-efficient"} <= {finding.measured for finding in routes}
    assert finished.errors_of("all") == set()
    numbers = finished.numbers("all")
    assert set(GOALS) <= numbers.keys()
    assert {f"decision: {subject}" for subject in PLACES} <= numbers.keys()
