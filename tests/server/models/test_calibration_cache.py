"""The measured cost of batches is stored, and reused by the same model on the same machine."""

import json
import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_server.models.calibration_cache import CostFile, calibrate
from headwaiter_server.runtime import hardware
from headwaiter_server.runtime.hardware import describe_hardware
from headwaiter_server.runtime.model import Model, Resources
from headwaiter_server.scheduling.cost import Calibration, CostModel
from tests.support.server.simulated_graph import VARYING, SimulatedGraph, simulated_model


def _calibrate(model: Model, folder: Path | None, *, threads: int = 1, token_cap: int = 0) -> Calibration:
    """Return the calibration of a start; if it was measured, store it, as a server does that has served for a while."""
    file = CostFile.of(folder, model, threads=threads, token_cap=token_cap)
    calibration = calibrate(model, token_cap=token_cap, file=file)
    if file is not None and not calibration.remembered:
        file.write(calibration)
    return calibration


def test_a_restart_reads_the_stored_cost_and_runs_only_a_few_batches(
    simulated: tuple[Model, SimulatedGraph], tmp_path: Path
) -> None:
    model, graph = simulated
    measured = _calibrate(model, tmp_path / "new" / "cache")
    assert not measured.remembered
    measuring_runs = len(graph.ran)
    graph.ran.clear()
    assert _calibrate(model, tmp_path / "new" / "cache") == replace(measured, remembered=True)
    assert 1 <= len(graph.ran) <= 3 < measuring_runs


@pytest.mark.parametrize("cost", [replace(VARYING, variable_length=False), VARYING])
def test_on_a_gpu_every_start_runs_batches_that_reach_the_limits_of_tokens_padding_and_cells(
    cost: CostModel, tmp_path: Path
) -> None:
    model, graph = simulated_model(tmp_path, cost, provider="cuda", width=768)
    with patch("headwaiter_server.runtime.batch_timing.time", graph):
        for remembered in (False, True):
            graph.ran.clear()
            calibration = _calibrate(model, tmp_path)
            assert calibration.remembered is remembered
            # At the first start, the timed batches ran before the last three.
            limits, ran = calibration.limits, graph.ran[-3:]
            padded = [shape.sequences * shape.longest_tokens for shape in ran]
            cells = [shape.sequences * shape.longest_tokens**2 for shape in ran]
            for largest, most in (
                (max(shape.tokens for shape in ran), limits.tokens),
                (max(padded), limits.padded_tokens),
                (max(cells), limits.cells),
            ):
                # Fused kernels store no scores, so nothing limits the cells.
                assert most == sys.maxsize or 0.99 * most <= largest <= most
            assert (limits.cells == sys.maxsize) is cost.variable_length
            # One batch has nearly the most cells that sequences can need.
            assert max(shape.needed_cells for shape in ran) >= 0.99 * min(limits.tokens * 512, limits.cells)


@pytest.mark.parametrize("provider", ["cpu", "cuda"])
def test_limits_are_halved_until_the_largest_batches_fit_in_memory_and_restored_at_a_start_with_more_memory(
    provider: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, graph = simulated_model(tmp_path, VARYING, provider=provider)
    with patch("headwaiter_server.runtime.batch_timing.time", graph):
        measured = _calibrate(model, tmp_path).limits
        graph.most_tokens = measured.tokens // 3
        halved = _calibrate(model, tmp_path).limits
        graph.most_tokens = measured.tokens
        assert _calibrate(model, tmp_path).limits == measured
    assert halved == measured.scaled(0.5).scaled(0.5)
    warnings = [message for message in caplog.messages if "out of memory" in message]
    assert len(warnings) == 2
    for message, tokens in zip(warnings, (measured.tokens, measured.tokens // 2), strict=True):
        assert str(tokens) in message


@pytest.mark.parametrize(
    "change",
    [
        {"provider": "cuda"},
        {"threads": 2},
        {"token_cap": 256},
        {"resources": Resources(threads=None, max_gpu_bytes=1 << 30)},
        {"graph_sha256": "cd" * 32},
        {},
    ],
    ids=lambda change: "".join(change),
)
def test_the_stored_cost_of_another_model_or_setting_is_not_used(
    change: dict[str, Any], simulated: tuple[Model, SimulatedGraph], tmp_path: Path
) -> None:
    model, _ = simulated
    _calibrate(model, tmp_path)
    options = {name: change.pop(name) for name in ("threads", "token_cap") if name in change}
    if "graph_sha256" in change:
        changed = Manifest.FromString(model.bundle.manifest.SerializeToString())
        changed.files[0].sha256 = change["graph_sha256"]
        change = {"bundle": replace(model.bundle, manifest=changed)}
    same = not (options or change)
    assert _calibrate(replace(model, **change), tmp_path, **options).remembered is same


def test_a_new_version_with_the_same_graph_is_not_measured_again(
    simulated: tuple[Model, SimulatedGraph], tmp_path: Path
) -> None:
    model, _ = simulated
    measured = _calibrate(model, tmp_path)
    new = replace(model, bundle=replace(model.bundle, digest="cd" * 32))
    assert _calibrate(new, tmp_path) == replace(measured, remembered=True)


@pytest.mark.parametrize("name", ["processor", "processors", "cards", "onnxruntime"])
def test_the_stored_cost_of_another_machine_is_not_used(
    name: str, simulated: tuple[Model, SimulatedGraph], tmp_path: Path
) -> None:
    model, _ = simulated
    _calibrate(model, tmp_path)
    other = {**describe_hardware(), name: "another"}
    with patch("headwaiter_server.models.calibration_cache.describe_hardware", lambda: other):
        assert not _calibrate(model, tmp_path).remembered


@pytest.mark.parametrize(
    "damage",
    [
        *(b"", b"\xff\x00", b"{}", b"[1]", b"null", b'{"token_s": ', b"[" * 100_000),
        {"token_s": float("nan")},
        {"token_s": -1.0},
        {"token_s": "much"},
        {"token_s": 10**400},
        {"token_s": None},
        {"launch_s": 0.0, "token_s": 0.0, "padded_s": 0.0, "cell_s": 0.0},
        {"token_budget": 0},
        {"service_tokens_per_s": "fast"},
        {"token_budget": float("inf")},
        {"about": {}},
    ],
    ids=lambda damage: str(damage)[:40],
)
def test_a_damaged_file_or_a_wrong_value_is_replaced_by_a_new_measurement(
    damage: bytes | dict[str, Any], simulated: tuple[Model, SimulatedGraph], tmp_path: Path
) -> None:
    model, _ = simulated
    _calibrate(model, tmp_path)
    (file,) = tmp_path.iterdir()
    content = damage if isinstance(damage, bytes) else json.dumps({**json.loads(file.read_text()), **damage}).encode()
    file.write_bytes(content)
    assert not _calibrate(model, tmp_path).remembered
    assert _calibrate(model, tmp_path).remembered


def test_what_a_start_measures_is_not_stored(simulated: tuple[Model, SimulatedGraph], tmp_path: Path) -> None:
    file = CostFile.of(tmp_path, simulated[0], threads=1, token_cap=0)
    assert not calibrate(simulated[0], token_cap=0, file=file).remembered
    assert not list(tmp_path.glob("calibration*"))


def test_a_folder_that_cannot_be_written_is_logged_once_and_is_no_error(
    simulated: tuple[Model, SimulatedGraph], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, _ = simulated
    (tmp_path / "file").touch()
    assert not _calibrate(model, tmp_path / "file" / "cache").remembered
    (message,) = caplog.messages
    assert "--cache-dir" in message
    assert str(tmp_path / "file" / "cache") in message


def test_without_a_folder_the_log_names_the_flag_that_stores_the_cost(
    simulated: tuple[Model, SimulatedGraph], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headwaiter_server")
    assert not _calibrate(simulated[0], None).remembered
    (message,) = caplog.messages
    assert "--cache-dir" in message


def test_a_model_that_cannot_run_is_an_error_with_and_without_a_stored_cost(
    simulated: tuple[Model, SimulatedGraph], tmp_path: Path
) -> None:
    model, graph = simulated
    _calibrate(model, tmp_path)
    graph.most_tokens = 0
    for folder in (tmp_path, None):
        with pytest.raises(RuntimeError, match="out of memory"):
            _calibrate(model, folder)


@pytest.mark.usefixtures("starts_processes")
def test_a_machine_is_described_by_its_processor_and_its_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Quick 9\nmodel name\t: Quick 9\n")
    for bus, name in (("0000:01", "Large"), ("0000:02", "Larger")):
        (tmp_path / "gpus" / bus).mkdir(parents=True)
        (tmp_path / "gpus" / bus / "information").write_text(f"Model: \t\t {name}\nIRQ: 1\n")
    monkeypatch.setattr(hardware, "_CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(hardware, "_NVIDIA_GPUS", tmp_path / "gpus")
    described = describe_hardware()
    assert (described["processor"], described["cards"]) == ("Quick 9", "Large, Larger")
    monkeypatch.setattr(hardware, "_CPU_INFO", tmp_path / "nowhere")
    monkeypatch.setattr(hardware, "_NVIDIA_GPUS", tmp_path / "nowhere")
    assert describe_hardware()["cards"] == ""
