"""Every part of the GPU check runs without a GPU, and finds what goes wrong."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import pytest

from bench.findings import Finding, Findings
from bench.gpu import __main__ as check
from bench.gpu.__main__ import Clock
from bench.gpu.decisions import (
    CALLS,
    GOALS,
    MEMORY,
    MODERN_BERT,
    P50,
    PLACES,
    SERVED,
    VARIABLE,
    compare,
    decide,
    report,
)
from bench.gpu.documents import _FIGURES, NUMERICS, document_lines, table_lines
from bench.gpu.graphs import BERT, TEXTS
from bench.gpu.settings import Effort, Settings
from headwaiter_export.checkpoints.reader import read_checkpoint
from headwaiter_export.config.presets import PRESETS
from testbed.minilm import ROOT
from tests.support.export.standard_attention import ATTENTION
from tests.support.gpu_check import rehearsal
from tests.support.gpu_check.rehearsal import EFFORT, Faults, RehearsalGpu, no_gpu


class Rehearse(Protocol):
    def __call__(
        self, parts: Sequence[str], *, effort: Effort = EFFORT, now_s: Clock = ..., **faults: Any
    ) -> tuple[int, list[Finding]]: ...


# PyTorch takes four times as long as Headwaiter, which takes 1 s, or half as long with CUDA graphs.
SLOW_AND_FAST = {"PyTorch": 4.0, "CUDA graphs": 0.5}


def no_time_passes() -> float:
    """Return the time of a clock that stands still, because the time limit of the check is that of a GPU."""
    return 0.0


@pytest.fixture
def rehearse(tmp_path: Path) -> Rehearse:
    """Run parts of the check, or all; return the exit status and the findings."""

    def run(
        parts: Sequence[str], *, effort: Effort = EFFORT, now_s: Clock = time.monotonic, **faults: Any
    ) -> tuple[int, list[Finding]]:
        chosen, file = Faults(**{"seconds": SLOW_AND_FAST, **faults}), tmp_path / "findings.json"
        gpu = RehearsalGpu(chosen)
        with no_gpu(chosen), rehearsal.pytorch_on_cpu():
            status = check.main(
                [*parts, "--json", str(file), "--model", str(tmp_path / "missing")],
                lambda _, checkpoint, folder: Settings(effort, checkpoint, folder, gpu),
                now_s,
            )
        found = json.loads(file.read_text())["findings"] if file.exists() else []
        return status, [Finding(**{name: each[name] for name in each.keys() - {"verdict"}}) for each in found]

    return run


@pytest.fixture
def one_model(text_bundle: Path, text_checkpoint: Path, runs_graphs: None) -> Iterator[None]:
    """Use the tests' text bundle for all models."""
    with rehearsal.one_model(text_bundle, read_checkpoint(text_checkpoint).encoder):
        yield


def failing(findings: Sequence[Finding]) -> set[str]:
    return {finding.name for finding in findings if finding.fails}


@pytest.mark.exhaustive
def test_replays_with_other_bits_are_counted_and_agree(rehearse: Rehearse, one_model: None) -> None:
    status, findings = rehearse(["graphs"], changed=1e-3)
    measured = {each.name: each for each in findings}
    assert status == 0
    for model in (BERT, TEXTS):
        # Graphs that ran often enough change values.
        assert measured[f"{model}: replays with other bits than an ordinary run"].number > 0
        assert 0.9999 < measured[f"{model}: smallest cosine of a replay and an ordinary run"].number < 1
        relative = measured[f"{model}: largest difference of a replay and an ordinary run / largest value"].number
        assert 1e-4 < relative < 1e-2
    for how, kernel in (("a replay", "other_gemm"), ("an ordinary run", "gemm")):
        assert measured[f"{BERT}, 1 × 32 tokens: kernels that {how} has more of"].measured == kernel


WRONG_SCALE = ATTENTION.replace("factor = Where (is_given, given_scale, usual_scale)", "factor = Identity (root)")
# The last row of the batch is added to all rows.
LEAK = ATTENTION.replace(
    "context = Gather (flat_contexts, offset_of_row)",
    "own_context = Gather (flat_contexts, offset_of_row)\n"
    "last_row = Gather <axis = 0> (query, rest)\n"
    "context = Add (own_context, last_row)",
)


def test_wrong_answers_are_found_and_not_timed(rehearse: Rehearse, one_model: None) -> None:
    status, findings = rehearse(["correctness", "batches"], attention=WRONG_SCALE)
    wrong = {"model, fp32: pooled, largest difference", "model, fp16: hidden, relative error"}
    assert status == 1
    assert wrong | {"batches"} <= failing(findings)
    assert not any(finding.name.endswith("tokens/s") for finding in findings)


def test_values_that_depend_on_neighbours_are_found(rehearse: Rehearse, one_model: None) -> None:
    status, findings = rehearse(["correctness"], attention=LEAK)
    assert status == 1
    assert "model, fp32: values changed by other sequences" in failing(findings)


def test_a_route_other_than_the_predicted_one_is_found(rehearse: Rehearse, one_model: None) -> None:
    status, findings = rehearse(["correctness"], kernel="FLASH_ATTENTION")
    routes = [finding for finding in findings if "attention route" in finding.name]
    assert status == 1
    assert {(each.measured, each.sign, each.bound, each.fails) for each in routes} == {
        ("flash", "=", "memory-efficient", True)
    }
    assert len(routes) == 2 * 2


@pytest.mark.parametrize(("part", "name"), [("kernels", "a full batch"), ("memory", "memory")])
def test_a_lack_of_memory_is_found(part: str, name: str, rehearse: Rehearse, one_model: None) -> None:
    status, findings = rehearse([part], memory_tokens=8)
    assert status == 1
    assert name in {finding.name for finding in findings if finding.is_error}


def test_a_machine_without_a_library_is_refused_before_the_first_part(
    rehearse: Rehearse, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rehearse([], unavailable="ONNX Runtime could not load its CUDA provider") == (1, [])
    assert capsys.readouterr().err == "gpu-check: ONNX Runtime could not load its CUDA provider\n"


@pytest.mark.usefixtures("starts_processes")
def test_a_hang_ends_the_check_and_what_was_measured_is_printed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.support.gpu_check.hanging", str(tmp_path / "findings.json")]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    *_, hang = json.loads((tmp_path / "findings.json").read_text())["findings"]
    assert (ended.returncode, hang["name"], hang["is_error"]) == (1, "duration, s", True)
    assert "a call has not returned 1 s after the start" in ended.stderr
    assert "in wait_for_ever" in ended.stderr
    assert "| kernels | measured before | 7 |" in ended.stderr


def test_no_measurement_starts_when_the_time_of_its_part_is_up(rehearse: Rehearse, one_model: None) -> None:
    # Each look at the clock takes 100 s, so that the time of the first part is up after float32.
    status, findings = rehearse(["correctness", "kernels"], now_s=map(float, count(0, 100)).__next__)
    assert status == 1
    assert [each.name for each in findings if each.is_error] == ["model", "kernels"]
    assert {"the time of this part is up" in each.reason for each in findings if each.is_error} == {True}
    assert [each.fails for each in findings if each.name == "duration, s"] == [True]
    assert [each.verdict for each in findings if each.name.endswith("fp32: values changed by other sequences")]


@pytest.mark.exhaustive
def test_batches_too_large_for_the_memory_do_not_stop_smaller_ones(rehearse: Rehearse, one_model: None) -> None:
    effort = replace(EFFORT, trace_tokens=4096, batch_tokens=(64, 2048))
    status, findings = rehearse(["batches"], effort=effort, memory_tokens=1500)
    assert status == 1
    assert "64 tokens: tokens/s" in {each.name for each in findings}
    assert "2,048 tokens" in {each.name for each in findings if each.is_error}


def test_a_profiler_that_sees_no_kernels_is_found(rehearse: Rehearse, one_model: None) -> None:
    _, findings = rehearse(["kernels"], profiler_error="no CUPTI")
    assert failing(findings) == {"a full batch", "1 × 32 tokens", "21 texts"}


def test_kernels_are_counted_by_name(rehearse: Rehearse, one_model: None) -> None:
    # The rehearsal's profiler sees a product of 60 µs, attention of 20 µs, and a norm of 15 µs after a gap of 5 µs.
    status, findings = rehearse(["kernels"])
    measured = {each.name: each.measured for each in findings}
    assert status == 0
    assert measured["a full batch: kernels"] == 3
    assert measured["a full batch: gaps between kernels, ms"] == pytest.approx(0.005)
    assert measured["1 × 32 tokens: gemm"] == "1 × 60.0 µs"
    assert measured["21 texts: shares"] == "matrix products 60%, attention 20%, other kernels 15%, gaps 5%"


def test_the_report_names_what_is_open_and_what_holds() -> None:
    findings = Findings("served")
    decide(findings, "--instances", f"1, {compare(2.0, 3.0)} tokens/s of one")
    findings.require(SERVED, 0.95, "≥", 0.9)
    findings.require(MODERN_BERT, 1.1, "≥", 1.2, is_aim=True)
    lines = report(findings.found, "H200").splitlines()
    assert [line for line in lines if line.endswith(" on H200:")] == [lines[0], lines[len(PLACES) + 3]]
    assert "- --instances: 1, 2 < 3 tokens/s of one (server/headwaiter_server/settings/flags.py: instances)" in lines
    assert sum(line.endswith(": open, because figures are missing") for line in lines) == len(PLACES) - 1
    assert f"- {SERVED}: 0.95 ≥ 0.9: holds" in lines
    assert f"- {MODERN_BERT}: 1.1 ≥ 1.2: does not hold" in lines
    assert sum(line.endswith(": not measured") for line in lines) == len(GOALS) - 2


def test_every_decision_names_a_place_in_the_code() -> None:
    for place in PLACES.values():
        file, _, names = place.partition(": ")
        code = (ROOT / file).read_text(encoding="utf-8")
        assert all(name in code for name in names.split(".")), place


def test_every_line_of_the_documentation_gets_its_figures() -> None:
    checked = ["all-MiniLM-L6-v2", *(f"{name}, random weights" for name in PRESETS)]
    graphs = [f"| {name} | packed-cuda.{precision} | cuda |" for name in checked for precision in ("fp16", "fp32")]
    measured = [Finding("correctness", name, " 1 | 2 |") for name in graphs]
    for label, sign, worst in (("pooled, largest difference", "≤", 3e-6), ("hidden, largest difference", "≤", 4e-5)):
        measured += [
            Finding("correctness", f"{m}, fp32: {label}", x, sign, 1.0) for m, x in (("a", worst), ("b", 1e-9))
        ]
    measured += [
        Finding("correctness", "a, fp32: pooled, smallest cosine", 0.999991, "≥", 0.99999),
        Finding("correctness", "a, fp32: hidden, smallest cosine", 0.999992, "≥", 0.99999),
        Finding("correctness", "a, fp16: pooled, smallest cosine", 0.99995, "≥", 0.9999),
        Finding("correctness", "a, fp16: hidden, relative error", 0.002, "≤", 0.005),
        Finding("correctness", "a, fp16: values changed by other sequences", 0, "≤", 0),
        Finding("in_process", "throughput in process / PyTorch, padded, in arrival order", 4.0, "≥", 2.0),
        Finding("in_process", VARIABLE, 1.5, "≥", 1.0, is_aim=True),
        Finding("rotary", MODERN_BERT, 1.3, "≥", 1.2, is_aim=True),
        Finding("calls", CALLS, 5000.0, "≥", 4750.0, is_aim=True),
        Finding("batches", "1,024 tokens: share of the matrix rate", 0.1),
        Finding("batches", "16,384 tokens: share of the matrix rate", 0.5, "≥", 0.35),
        Finding("served", SERVED, 0.9, "≥", 0.9),
        Finding("served", P50, 1.25, "≤", 2.9, is_aim=True),
        Finding("served", P50.replace("p50", "p99"), 2.5),
        Finding("memory", MEMORY, 1.02, "≤", 1.05),
    ]
    lines = document_lines(measured, "H200").splitlines()
    rows_of_graphs = [line for line in table_lines(NUMERICS) if line.startswith(tuple(graphs))]
    assert len([line for line in lines if line.startswith("|")]) == len(_FIGURES) + len(rows_of_graphs)
    last_cells = [line.split("|")[-2].strip() for line in lines if line.startswith(tuple(_FIGURES))]
    assert last_cells == [
        *("4", "1.5", "1.3", "0.5", "0.9", "1.25, 2.5", "5,000", "1.02"),
        *("3e-06", "4e-05", "0.999991", "0.99995", "0.002", "0"),
    ]
    assert document_lines([], "H200").count("|") == 0


@pytest.mark.exhaustive
@pytest.mark.usefixtures("starts_processes", "runs_graphs", "runs_transformers")
@pytest.mark.timeout(1200)  # Traces the graphs of all models: minutes.
def test_the_whole_check_holds_with_all_models_and_a_server(
    rehearse: Rehearse, capsys: pytest.CaptureFixture[str]
) -> None:
    status, findings = rehearse([], now_s=no_time_passes)
    assert (status, failing(findings)) == (0, set())
    assert [each.measured for each in findings if each.name == "provider"] == ["cuda"]
    for setup in ("by default", "without front ends", "without CUDA graphs"):
        names = f"one sequence of 32 tokens, fp16: served {setup}, p50 ms", f"an empty call: served {setup}, p50 ms"
        assert [sum(each.name == name and each.number > 0 for each in findings) for name in names] == [1, 1]
    printed = capsys.readouterr().out
    assert len([line for line in printed.splitlines() if line.startswith(tuple(_FIGURES))]) == len(_FIGURES)
    at_end = printed.rpartition("Decisions, ")[2]
    assert [at_end.count(state) for state in ("open, because", "not measured")] == [0, 0]
