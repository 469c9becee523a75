"""What batches cost is measured once a machine: a simulated one, whose true cost is known."""

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from headwaiter_server.runtime import hardware as machine
from headwaiter_server.runtime.graph import Outputs
from headwaiter_server.runtime.hardware import describe_hardware
from headwaiter_server.runtime.model import Model, Resources
from headwaiter_server.runtime.packing import PackedBatch
from headwaiter_server.scheduling.calibration import Calibration, measure_cost
from headwaiter_server.scheduling.calibration_cache import calibrate
from headwaiter_server.scheduling.cost import CostModel, Shape
from tests.server.rpc.stand_ins import model as stand_in

GATHERED = CostModel(launch_s=2e-4, token_s=1e-5, padded_s=4e-7, cell_s=2e-8)
VARYING = CostModel(launch_s=2e-3, token_s=1e-6, padded_s=0.0, cell_s=2e-9, variable_length=True)


class Simulated:
    """A graph with a clock of its own, on which a batch takes what a cost model says.

    Attributes:
        now_s: what the clock shows.
        ran: the shapes of the batches that have run.
        most_tokens: larger batches fail.
    """

    pools = True

    def __init__(self, cost: CostModel) -> None:
        self.now_s = 0.0
        self.ran: list[Shape] = []
        self.most_tokens = 1 << 20
        self._cost = cost
        self.variable_length = cost.variable_length

    def perf_counter(self) -> float:
        return self.now_s

    def run(self, batch: PackedBatch, *, hidden: bool) -> Outputs:
        if batch.tokens > self.most_tokens:
            raise RuntimeError("out of memory")
        self.ran.append(Shape.of(batch.lengths.tolist()))
        self.now_s += self._cost.seconds(*self.ran[-1])
        return Outputs(None, None)


def _model(folder: Path, cost: CostModel, width: int = 2, **changes: Any) -> tuple[Model, Simulated]:
    graph: Any = Simulated(cost)
    return replace(stand_in(folder, max_tokens=512, heads=12, width=width), graph=graph, **changes), graph


@pytest.fixture
def simulated(tmp_path: Path) -> Iterator[tuple[Model, Simulated]]:
    model, graph = _model(tmp_path, GATHERED)
    with patch("headwaiter_server.runtime.warmup.time", graph):
        yield model, graph


def _calibrate(model: Model, folder: Path | None, *, threads: int = 1, token_cap: int = 0) -> Calibration:
    return calibrate(model, threads=threads, token_cap=token_cap, folder=folder)


@pytest.mark.parametrize(("cost", "provider"), [(GATHERED, "cpu"), (VARYING, "cuda")])
def test_the_cost_of_a_machine_is_recovered_and_its_budget_is_within_three_percent_of_the_largest(
    cost: CostModel, provider: str, tmp_path: Path
) -> None:
    model, graph = _model(tmp_path, cost, provider=provider)
    with patch("headwaiter_server.runtime.warmup.time", graph):
        measured = measure_cost(model)
    for lengths in ((1,), (512,), (64,) * 8, (128, 8, 8, 8)):
        shape = len(lengths), sum(lengths), max(lengths), sum(length**2 for length in lengths)
        assert measured.cost.seconds(*shape) == pytest.approx(cost.seconds(*shape), rel=1e-3)
    assert measured.error_ratio < 1e-3
    assert measured.service_tokens_per_s == pytest.approx(_rate(cost, measured.limits.tokens), rel=1e-3)
    largest = {"cpu": 4096, "cuda": 65_536}[provider]
    assert _rate(cost, measured.limits.tokens) >= 0.97 * _rate(cost, largest)
    assert _rate(cost, measured.limits.tokens // 2) < 0.97 * _rate(cost, largest)


def _rate(cost: CostModel, tokens: int) -> float:
    sequences = tokens // 48
    return sequences * 48 / cost.seconds(sequences, sequences * 48, 48, sequences * 48**2)


@pytest.mark.parametrize(("cap", "budgets"), [(100, {100}), (300, {128, 256}), (128, {128})])
def test_a_cap_bounds_the_budget_and_what_is_measured(
    cap: int, budgets: set[int], simulated: tuple[Model, Simulated]
) -> None:
    model, _ = simulated
    measured = measure_cost(model, cap)
    assert measured.limits.tokens in budgets


@pytest.mark.parametrize(
    ("heads", "max_tokens", "cells"), [(12, 512, (64 << 20) // 48), (1, 4096, 1 << 24), (16, 4096, 1 << 24)]
)
def test_the_scores_of_a_batch_take_64_mib_on_the_cpu_unless_one_sequence_takes_more(
    heads: int, max_tokens: int, cells: int, tmp_path: Path
) -> None:
    graph: Any = Simulated(GATHERED)
    with patch("headwaiter_server.runtime.warmup.time", graph):
        model = replace(stand_in(tmp_path, max_tokens=max_tokens, heads=heads), graph=graph)
        assert measure_cost(model).limits.cells == cells


def test_a_restart_remembers_what_was_measured_and_runs_only_a_few_batches(
    simulated: tuple[Model, Simulated], tmp_path: Path
) -> None:
    model, graph = simulated
    measured = _calibrate(model, tmp_path / "new" / "cache")
    assert not measured.remembered
    measuring_runs = len(graph.ran)
    graph.ran.clear()
    assert _calibrate(model, tmp_path / "new" / "cache") == replace(measured, remembered=True)
    assert 1 <= len(graph.ran) <= 3 < measuring_runs


def test_on_a_card_every_start_runs_batches_as_large_as_the_limits_in_tokens_in_padding_and_in_cells(
    tmp_path: Path,
) -> None:
    model, graph = _model(tmp_path, VARYING, provider="cuda", width=768)
    with patch("headwaiter_server.runtime.warmup.time", graph):
        for remembered in (False, True):
            graph.ran.clear()
            calibration = _calibrate(model, tmp_path)
            assert calibration.remembered is remembered
            # Before them, what was measured at the first start.
            limits, ran = calibration.limits, graph.ran[-3:]
            padded = [shape.sequences * shape.longest_tokens for shape in ran]
            cells = [shape.sequences * shape.longest_tokens**2 for shape in ran]
            for largest, most in (
                (max(shape.tokens for shape in ran), limits.tokens),
                (max(padded), limits.padded_tokens),
                (max(cells), limits.cells),
            ):
                assert 0.99 * most <= largest <= most
            # Nothing has more cells that its sequences need.
            assert max(shape.squares for shape in ran) >= 0.99 * min(limits.tokens * 512, limits.cells)


@pytest.mark.parametrize("provider", ["cpu", "cuda"])
def test_limits_are_halved_until_the_largest_batches_find_memory_and_a_start_with_more_has_them_all(
    provider: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, graph = _model(tmp_path, VARYING, provider=provider)
    with patch("headwaiter_server.runtime.warmup.time", graph):
        measured = _calibrate(model, tmp_path).limits
        graph.most_tokens = measured.tokens // 3
        halved = _calibrate(model, tmp_path).limits
        graph.most_tokens = measured.tokens
        assert _calibrate(model, tmp_path).limits == measured
    assert halved == measured.halved().halved()
    assert [message for message in caplog.messages if message.startswith("full batches")] == [
        f"full batches of {tokens} tokens cannot run, half of that is tried: out of memory"
        for tokens in (measured.tokens, measured.tokens // 2)
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"graph_file": "other.onnx"},
        {"provider": "cuda"},
        {"threads": 2},
        {"token_cap": 256},
        {"resources": Resources(threads=None, max_gpu_bytes=1 << 30)},
        {"digest": "cd" * 32},
        {},
    ],
    ids=str,
)
def test_what_was_measured_of_something_else_is_not_taken_for_it(
    change: dict[str, Any], simulated: tuple[Model, Simulated], tmp_path: Path
) -> None:
    model, _ = simulated
    _calibrate(model, tmp_path)
    how = {name: change.pop(name) for name in ("threads", "token_cap") if name in change}
    if "digest" in change:
        change = {"bundle": replace(model.bundle, digest=change["digest"])}
    same = not (how or change)
    assert _calibrate(replace(model, **change), tmp_path, **how).remembered is same


@pytest.mark.parametrize("name", ["processor", "processors", "cards", "onnxruntime"])
def test_another_machine_measures_for_itself(name: str, simulated: tuple[Model, Simulated], tmp_path: Path) -> None:
    model, _ = simulated
    _calibrate(model, tmp_path)
    other = {**describe_hardware(), name: "another"}
    with patch("headwaiter_server.scheduling.calibration_cache.describe_hardware", lambda: other):
        assert not _calibrate(model, tmp_path).remembered


@pytest.mark.parametrize(
    "change",
    [
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
    ids=lambda change: str(change)[:40],
)
def test_a_file_with_a_wrong_value_is_measured_anew_and_mended(
    change: dict[str, Any], simulated: tuple[Model, Simulated], tmp_path: Path
) -> None:
    model, _ = simulated
    _calibrate(model, tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    assert not _calibrate(model, tmp_path).remembered
    assert _calibrate(model, tmp_path).remembered


@pytest.mark.parametrize("content", [b"", b"\xff\x00", b"{}", b"[1]", b"null", b'{"token_s": ', b"[" * 100_000])
def test_a_damaged_file_is_measured_anew_and_mended(
    content: bytes, simulated: tuple[Model, Simulated], tmp_path: Path
) -> None:
    model, _ = simulated
    _calibrate(model, tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(content)
    assert not _calibrate(model, tmp_path).remembered
    assert _calibrate(model, tmp_path).remembered


def test_what_was_measured_on_a_disturbed_machine_is_told_and_not_remembered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen: dict[bytes, int] = {}

    class Disturbed(Simulated):
        def run(self, batch: PackedBatch, *, hidden: bool) -> Outputs:
            # The best of a few runs hides what disturbs some of them, but not what disturbs all of some shapes.
            before_s = self.now_s
            outputs = super().run(batch, hidden=hidden)
            self.now_s += 4 * (self.now_s - before_s) * (seen.setdefault(batch.lengths.tobytes(), len(seen)) % 2)
            return outputs

    graph: Any = Disturbed(GATHERED)
    model = replace(stand_in(tmp_path, max_tokens=512, heads=12), graph=graph)
    with patch("headwaiter_server.runtime.warmup.time", graph):
        assert _calibrate(model, tmp_path).error_ratio > 0.1
    (told,) = caplog.messages
    assert told.startswith("what batches cost is not remembered, as timed batches differ from it by ")
    assert not list(tmp_path.glob("calibration*"))


def test_a_folder_that_cannot_be_written_is_told_once_a_start_and_is_no_error(
    simulated: tuple[Model, Simulated], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, _ = simulated
    (tmp_path / "file").touch()
    assert not _calibrate(model, tmp_path / "file" / "cache").remembered
    (told,) = caplog.messages
    assert "measured at every start, as --cache-dir cannot be written" in told


def test_without_a_folder_the_log_says_that_every_start_measures(
    simulated: tuple[Model, Simulated], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headwaiter_server")
    assert not _calibrate(simulated[0], None).remembered
    assert caplog.messages == ["what batches cost is measured at every start, as there is no --cache-dir to keep it in"]


def test_a_remembered_model_that_cannot_run_is_an_error_as_it_is_when_measured(
    simulated: tuple[Model, Simulated], tmp_path: Path
) -> None:
    model, graph = simulated
    _calibrate(model, tmp_path)
    graph.most_tokens = 0
    for folder in (tmp_path, None):
        with pytest.raises(RuntimeError, match="out of memory"):
            _calibrate(model, folder)


def test_a_machine_is_described_by_its_processor_and_cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Quick 9\nmodel name\t: Quick 9\n")
    for bus, name in (("0000:01", "Large"), ("0000:02", "Larger")):
        (tmp_path / "gpus" / bus).mkdir(parents=True)
        (tmp_path / "gpus" / bus / "information").write_text(f"Model: \t\t {name}\nIRQ: 1\n")
    monkeypatch.setattr(machine, "_CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(machine, "_NVIDIA_GPUS", tmp_path / "gpus")
    described = describe_hardware()
    assert (described["processor"], described["cards"]) == ("Quick 9", "Large, Larger")
    monkeypatch.setattr(machine, "_CPU_INFO", tmp_path / "nowhere")
    monkeypatch.setattr(machine, "_NVIDIA_GPUS", tmp_path / "nowhere")
    assert describe_hardware()["cards"] == ""
