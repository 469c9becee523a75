"""The cost of batches is measured at start-up, here on a simulated graph with a known cost."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Manifest, Padding
from headwaiter_server.models.calibration import (
    batch_limits,
    calibrate,
    capture_cuda_graphs,
    check_longest_sequence,
    measure_cost,
    warm_up,
)
from headwaiter_server.runtime.errors import LongestSequenceRefused
from headwaiter_server.runtime.graph import GraphOutputs, Provider, at_once
from headwaiter_server.runtime.memory import LOGITS_AT_ONCE
from headwaiter_server.runtime.model import Model, Resources
from headwaiter_server.runtime.packing import PackedBatch, pack
from headwaiter_server.runtime.shape_buckets import GraphShape, graph_shape, round_up_to_buckets
from headwaiter_server.scheduling.cost import CostModel, LearntCost, Shape
from tests.support.server.stand_ins import model as stand_in
from tests.support.server.stand_ins import served

GATHERED = CostModel(launch_s=2e-4, token_s=1e-5, padded_s=4e-7, cell_s=2e-8)
VARYING = CostModel(launch_s=2e-3, token_s=1e-6, padded_s=0.0, cell_s=2e-9, variable_length=True)


class SimulatedGraph:
    """A graph with its own clocks, on which a batch takes the time that a cost model predicts.

    Attributes:
        now_s: CPU time of the thread that runs the graph.
        stolen_s: seconds in which other programs held the core of the thread.
        next_stolen_s: returns how long other programs hold the core during the next batch.
        ran: shapes of the batches that ran.
        most_tokens: batches with more tokens fail.
        most_sequences: batches with more sequences fail, after rounding as on a GPU.
    """

    hidden_is_optional = True
    cuda_graphs = None
    turn = staticmethod(at_once)
    on_gpu = False

    def __init__(self, cost: CostModel) -> None:
        self.now_s = self.stolen_s = 0.0
        self.next_stolen_s: Callable[[], float] = lambda: 0.0
        self.ran: list[Shape] = []
        self.most_tokens = 1 << 20
        self.most_sequences: int | None = None
        self._cost = cost
        self.variable_length = cost.variable_length

    def thread_time(self) -> float:
        return self.now_s

    def perf_counter(self) -> float:
        return self.now_s + self.stolen_s

    def prepare(self, batch: PackedBatch) -> PackedBatch:
        return batch

    def run(self, batch: PackedBatch, *, hidden: bool) -> GraphOutputs:
        if batch.tokens > self.most_tokens:
            raise RuntimeError("out of memory")
        if self.most_sequences is not None and round_up_to_buckets(batch).sequences > self.most_sequences:
            raise RuntimeError("invalid configuration argument")
        self.ran.append(Shape.of(batch.lengths.tolist(), hidden=hidden))
        self.now_s += self._cost.seconds(*self.ran[-1])
        self.stolen_s += self.next_stolen_s()
        return GraphOutputs(None, None)


Simulate = Callable[..., tuple[Model, SimulatedGraph]]


@pytest.fixture
def simulate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Simulate:
    """Make models on simulated graphs with a cost; the clock is that of the latest one."""

    def make(
        cost: CostModel, *, max_tokens: int = 512, heads: int = 12, width: int = 2, **changes: Any
    ) -> tuple[Model, SimulatedGraph]:
        graph: Any = SimulatedGraph(cost)
        graph.on_gpu = changes.get("provider") == "cuda"
        monkeypatch.setattr("headwaiter_server.runtime.batch_timing.time", graph)
        model = stand_in(tmp_path, max_tokens=max_tokens, heads=heads, width=width)
        return replace(model, graph=graph, **changes), graph

    return make


@pytest.mark.parametrize(("cost", "provider"), [(GATHERED, "cpu"), (VARYING, "cuda")])
def test_calibration_recovers_the_cost_and_its_budget_is_within_three_percent_of_the_fastest(
    cost: CostModel, provider: str, simulate: Simulate
) -> None:
    model, _ = simulate(cost, provider=provider)
    measured = measure_cost(model)
    for lengths in ((1,), (512,), (64,) * 8, (128, 8, 8, 8)):
        shape = len(lengths), sum(lengths), max(lengths), sum(length**2 for length in lengths)
        assert measured.cost.seconds(*shape) == pytest.approx(cost.seconds(*shape), rel=1e-3)
    assert measured.error_ratio < 1e-3
    assert measured.service_tokens_per_s == pytest.approx(_rate(cost, measured.limits.tokens), rel=1e-3)
    largest = {"cpu": 4096, "cuda": 65_536}[provider]
    assert _rate(cost, measured.limits.tokens) >= 0.97 * _rate(cost, largest)
    assert _rate(cost, measured.limits.tokens // 2) < 0.97 * _rate(cost, largest)


def test_other_programs_on_the_cores_change_neither_the_cost_of_a_cpu_nor_its_budget(simulate: Simulate) -> None:
    random = Random(0)
    measured = []
    for stolen_s in (lambda: 0.0, lambda: random.expovariate(1 / 0.1)):
        model, graph = simulate(GATHERED)
        graph.next_stolen_s = stolen_s
        measured.append(measure_cost(model))
    assert graph.stolen_s > graph.now_s
    assert measured[1] == measured[0]


def test_a_gpu_is_timed_by_the_clock_because_its_batches_take_no_cpu_time(simulate: Simulate) -> None:
    model, graph = simulate(GATHERED, provider="cuda")
    graph.next_stolen_s = lambda: 1e-3
    launch_s = measure_cost(model).cost.launch_s
    assert launch_s == pytest.approx(GATHERED.launch_s + 1e-3, rel=1e-3)


def test_the_wait_for_a_turn_on_the_device_does_not_count(simulate: Simulate) -> None:
    model, graph = simulate(GATHERED, provider="cuda")

    def wait(run: Callable[[], float]) -> float:
        graph.now_s += 100.0
        return run()

    with patch.object(graph, "turn", wait):
        assert measure_cost(model).cost.launch_s == pytest.approx(GATHERED.launch_s, rel=1e-3)


def _rate(cost: CostModel, tokens: int) -> float:
    sequences = tokens // 48
    return sequences * 48 / cost.seconds(sequences, sequences * 48, 48, sequences * 48**2)


class GraphsOnPaper:
    """CUDA graphs that take the seconds that the test defines; see `EncoderGraph`."""

    turn = staticmethod(at_once)

    def __init__(
        self, ordinary_ms: float, graph_ms: Callable[[int], float], *, angle: float = 0.0, wrong_later: bool = False
    ) -> None:
        self.captured: set[GraphShape] = set()
        self.cuda_graphs = self
        self._ordinary_ms, self._graph_ms, self._wrong_later = ordinary_ms, graph_ms, wrong_later
        # Vectors with an angle between them, of a replay and of an ordinary run.
        self._replayed, self._ordinary = (
            GraphOutputs(np.array([[np.cos(each), np.sin(each)]], np.float32), None) for each in (angle, 0.0)
        )

    def __len__(self) -> int:
        return len(self.captured)

    def capture(
        self, batch: PackedBatch, disagreement: Callable[[GraphOutputs, GraphOutputs], str | None]
    ) -> GraphShape | None:
        if problem := disagreement(self._replayed, self._ordinary):
            raise RuntimeError(problem)
        if shape := graph_shape(batch):
            self.captured.add(shape)
        return shape

    def checks(self) -> list[Callable[[], float]]:
        return [lambda: 1 // (not self._wrong_later)]

    def drop(self, shape: GraphShape | None = None) -> None:
        self.captured -= {shape} if shape else self.captured

    def time_batch(self, _: object, manifest: Manifest, lengths: tuple[int, ...]) -> float:
        shape = graph_shape(pack([np.arange(length) for length in lengths]))
        assert shape is not None
        return (self._graph_ms(shape.tokens) if shape in self.captured else self._ordinary_ms) / 1000


# Below this angle, fp16's vectors agree: the cosine is at least 0.9999.
ANGLE = np.arccos(0.9999)


@pytest.mark.parametrize(
    ("graphs", "largest_tokens", "facts"),
    [
        (
            GraphsOnPaper(2.0, lambda tokens: 0.5, angle=0.9 * ANGLE),
            2048,
            ["has 118 CUDA graphs: 17 tokens 0.50 instead of 2.00 ms"],
        ),
        (GraphsOnPaper(2.0, lambda tokens: tokens / 128), 128, ["has 36 CUDA graphs", "144 tokens 2.00 instead of"]),
        (GraphsOnPaper(0.5, lambda tokens: 2.0), 0, ["has 0 CUDA graphs: 17 tokens 2.00 instead of 0.50 ms"]),
        (GraphsOnPaper(2.0, lambda tokens: 0.5, angle=1.1 * ANGLE), 0, ["runs without CUDA graphs", "0.99987"]),
        (GraphsOnPaper(2.0, lambda tokens: 0.5, wrong_later=True), 0, ["runs without CUDA graphs"]),
    ],
    ids=["faster", "faster up to 128 tokens", "slower", "other numbers", "wrong later"],
)
def test_cuda_graphs_are_used_for_as_many_tokens_as_they_are_faster(
    graphs: GraphsOnPaper, largest_tokens: int, facts: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    manifest = Manifest(name="text", vocabulary_size=100, max_tokens=512)
    model: Any = SimpleNamespace(bundle=SimpleNamespace(manifest=manifest), graph=graphs, precision=pb.PRECISION_FP16)
    with patch("headwaiter_server.models.calibration.time_batch", graphs.time_batch), caplog.at_level("INFO"):
        capture_cuda_graphs(model)
    (message,) = caplog.messages
    for fact in facts:
        assert fact in message
    assert max((shape.tokens for shape in graphs.captured), default=0) == largest_tokens


@pytest.mark.parametrize(("pools", "hidden_row_s"), [(True, 5e-6), (False, 0.0)])
def test_calibration_recovers_the_cost_of_hidden_rows(pools: bool, hidden_row_s: float, simulate: Simulate) -> None:
    model, graph = simulate(replace(GATHERED, hidden_row_s=5e-6))
    graph.hidden_is_optional = pools
    assert measure_cost(model).cost.hidden_row_s == pytest.approx(hidden_row_s, rel=1e-3)


@pytest.mark.parametrize(("cap", "budgets"), [(100, {100}), (300, {128, 256}), (128, {128})])
def test_a_cap_bounds_the_budget(cap: int, budgets: set[int], simulate: Simulate) -> None:
    model, _ = simulate(GATHERED)
    measured = measure_cost(model, cap)
    assert measured.limits.tokens in budgets


@pytest.mark.parametrize(
    ("heads", "max_tokens", "cells"), [(12, 512, (64 << 20) // 48), (1, 4096, 1 << 24), (16, 4096, 1 << 24)]
)
def test_attention_scores_take_64_mib_on_the_cpu_unless_one_sequence_needs_more(
    heads: int, max_tokens: int, cells: int, simulate: Simulate
) -> None:
    model, _ = simulate(GATHERED, max_tokens=max_tokens, heads=heads)
    assert measure_cost(model).limits.cells == cells


@pytest.mark.parametrize("provider", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("isolation", "allowed"),
    [
        (pb.ISOLATION_MIXED, lambda shape: True),
        (pb.ISOLATION_ONE_LENGTH, lambda shape: shape.padding_ratio == 0),
        (pb.ISOLATION_ONE_SEQUENCE, lambda shape: shape.sequences == 1),
    ],
)
def test_only_batches_that_may_run_are_timed_and_planned(
    isolation: pb.Isolation, allowed: Callable[[Shape], bool], provider: Provider, simulate: Simulate
) -> None:
    model, graph = simulate(GATHERED, provider=provider)
    model.bundle.manifest.padding.CopyFrom(Padding(isolation=isolation, token_values=3072, cell_values=12))
    limits = calibrate(model, 0).limits
    assert graph.ran
    assert all(map(allowed, graph.ran))
    assert limits.one_length == (isolation == pb.ISOLATION_ONE_LENGTH)
    assert (limits.sequences == 1) == (isolation == pb.ISOLATION_ONE_SEQUENCE)
    assert any(shape.sequences > 1 for shape in graph.ran) == (isolation != pb.ISOLATION_ONE_SEQUENCE)


def test_largest_arrays_of_padded_graphs_limit_batches(simulate: Simulate) -> None:
    model, _ = simulate(GATHERED)
    model.bundle.manifest.padding.CopyFrom(Padding(isolation=pb.ISOLATION_MIXED, token_values=3072, cell_values=24))
    limits = batch_limits(model, 512)
    assert 4 * limits.cells * 24 <= 64 << 20 < 4 * (limits.cells + 1) * 24
    assert 4 * limits.padded_tokens * 3072 <= 64 << 20 < 4 * (limits.padded_tokens + 1) * 3072


@pytest.mark.parametrize("vocabulary", [30_522, 250_002])
def test_vectors_of_the_whole_vocabulary_and_their_logits_take_64_mib_on_the_cpu(
    vocabulary: int, simulate: Simulate
) -> None:
    model, _ = simulate(GATHERED, width=384)
    usual = batch_limits(model, 512)
    manifest = model.bundle.manifest
    manifest.sparse, manifest.width, manifest.hidden_width = True, vocabulary, 384
    limits = batch_limits(model, 512)
    assert 4 * limits.sequences * vocabulary <= 64 << 20 < 4 * (limits.sequences + 1) * vocabulary
    assert 4 * limits.padded_tokens * LOGITS_AT_ONCE <= 64 << 20
    assert limits.padded_tokens < usual.padded_tokens
    assert usual.sequences == sys.maxsize


@pytest.mark.parametrize(("cost", "heads", "scores_bytes"), [(GATHERED, 12, 8), (GATHERED, 1, 8), (VARYING, 12, 0)])
def test_attention_scores_take_2_gib_on_a_gpu_if_attention_computes_padding_and_nothing_otherwise(
    cost: CostModel, heads: int, scores_bytes: int, simulate: Simulate
) -> None:
    model, _ = simulate(cost, heads=heads, provider="cuda")
    cells = batch_limits(model, 1024).cells
    assert cells == ((2 << 30) // (heads * scores_bytes) if scores_bytes else sys.maxsize)


@pytest.mark.parametrize("heads", [1, 2, 12, 32])
@pytest.mark.parametrize("length", [9, 17, 513, 1025, 7001])
def test_no_gathered_batch_on_a_gpu_has_2_to_the_31_scores(heads: int, length: int, simulate: Simulate) -> None:
    model, _ = simulate(GATHERED, max_tokens=32_768, heads=heads, provider="cuda")
    limits = batch_limits(model, 1 << 20)
    # One sequence may always run; `most_padded_tokens` limits its length.
    sequences = max(1, limits.cells // limits.padded_length(length) ** 2)
    rounded = round_up_to_buckets(pack([np.zeros(length, np.int64)] * sequences))
    assert heads * rounded.sequences * rounded.padded_length**2 < 1 << 31


@pytest.mark.parametrize("cost", [GATHERED, VARYING])
@pytest.mark.parametrize("max_tokens", [1, 512])
def test_a_narrow_model_keeps_its_limits_because_no_batch_has_too_many_sequences_for_a_gpu(
    cost: CostModel, max_tokens: int, simulate: Simulate
) -> None:
    model, graph = simulate(cost, max_tokens=max_tokens, heads=2, width=8, provider="cuda")
    graph.most_sequences = 65_535
    limits = batch_limits(model, 65_536)
    assert warm_up(model, limits) == limits
    assert max(shape.sequences for shape in graph.ran) <= limits.sequences == 65_535


def test_a_gpu_on_which_the_longest_sequence_does_not_run_is_refused_with_the_length_and_the_flag(
    simulate: Simulate,
) -> None:
    model, graph = simulate(VARYING, provider="cuda")
    graph.most_tokens = 511
    with pytest.raises(LongestSequenceRefused) as refused:
        check_longest_sequence(model)
    for fact in ("512 tokens", "tiny", "out of memory", "--max-sequence-tokens"):
        assert fact in str(refused.value)


def test_a_known_cost_is_not_measured_again(simulate: Simulate) -> None:
    model, graph = simulate(GATHERED)
    measured = calibrate(model, 0)
    assert not measured.remembered
    measuring_runs = len(graph.ran)
    graph.ran.clear()
    assert calibrate(model, 0, measured) == replace(measured, remembered=True)
    assert 1 <= len(graph.ran) <= 3 < measuring_runs
    # With another limit of the token budget, the cost is measured.
    capped = calibrate(model, 128, measured)
    assert not capped.remembered
    assert capped.limits.tokens == 128 < measured.limits.tokens


@pytest.mark.parametrize(("provider", "tokens"), [("cpu", 256), ("cuda", 1024)])
def test_only_on_a_cpu_a_version_inherits_a_budget_that_was_lowered(
    provider: str, tokens: int, simulate: Simulate
) -> None:
    model, _ = simulate(VARYING, provider=provider)
    known = replace(calibrate(model, 0), limits=batch_limits(model, 256), measured_budget_tokens=1024)
    assert calibrate(model, 0, known).limits.tokens == tokens


@pytest.mark.parametrize("cost", [replace(VARYING, variable_length=False), VARYING])
def test_on_a_gpu_every_start_runs_batches_that_reach_the_limits_of_tokens_padding_and_cells(
    cost: CostModel, simulate: Simulate
) -> None:
    model, graph = simulate(cost, provider="cuda", width=768)
    calibration = None
    for remembered in (False, True):
        graph.ran.clear()
        calibration = calibrate(model, 0, calibration)
        assert calibration.remembered is remembered
        # Batches that are timed run before the last three.
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
def test_limits_are_halved_until_the_largest_batches_fit_in_memory(
    provider: str, simulate: Simulate, caplog: pytest.LogCaptureFixture
) -> None:
    model, graph = simulate(VARYING, provider=provider)
    measured = calibrate(model, 0)
    graph.most_tokens = measured.limits.tokens // 3
    halved = calibrate(model, 0, measured).limits
    assert halved == measured.limits.scaled(0.5).scaled(0.5)
    warnings = [message for message in caplog.messages if "out of memory" in message]
    assert len(warnings) == 2
    for message, tokens in zip(warnings, (measured.limits.tokens, measured.limits.tokens // 2), strict=True):
        assert str(tokens) in message


def test_a_model_that_cannot_run_is_an_error_with_and_without_a_known_cost(simulate: Simulate) -> None:
    model, graph = simulate(GATHERED)
    measured = calibrate(model, 0)
    graph.most_tokens = 0
    for known in (measured, None):
        with pytest.raises(RuntimeError, match="out of memory"):
            calibrate(model, 0, known)


@pytest.mark.parametrize(
    "change",
    [
        {"provider": "cuda"},
        {"resources": Resources(threads=2)},
        {"resources": Resources(threads=None, max_gpu_bytes=1 << 30)},
        {"structure": "cd" * 32},
        {"max_tokens": 256},
        {"digest": "cd" * 32},
    ],
    ids=lambda change: "".join(change),
)
def test_only_a_version_with_the_same_graph_and_the_same_resources_costs_as_much(
    change: dict[str, Any], simulate: Simulate
) -> None:
    model, _ = simulate(GATHERED)
    same = "digest" in change
    if "max_tokens" in change:
        changed = Manifest.FromString(model.bundle.manifest.SerializeToString())
        changed.max_tokens = change["max_tokens"]
        change = {"bundle": replace(model.bundle, manifest=changed)}
    elif same:  # A new version of a model usually has the same graph and other weights.
        change = {"bundle": replace(model.bundle, **change)}
    assert (model.cost_conditions == replace(model, **change).cost_conditions) is same


def test_a_new_version_inherits_what_the_batches_have_taught(simulate: Simulate) -> None:
    model, _ = simulate(GATHERED)
    running = served(model)
    cost = running.calibration.cost
    queue: Any = running.queue
    queue.learnt = LearntCost(cost)
    assert running.known_cost.calibration.cost.seconds(1, 50, 50, 2500) == cost.seconds(1, 50, 50, 2500)
    for _ in range(40):
        queue.learnt.note_batch(Shape.of([50]), 2 * cost.seconds(1, 50, 50, 2500))
    known = running.known_cost
    assert known.conditions == model.cost_conditions
    assert known.calibration.cost.seconds(1, 50, 50, 2500) == pytest.approx(2 * cost.seconds(1, 50, 50, 2500), rel=0.01)
