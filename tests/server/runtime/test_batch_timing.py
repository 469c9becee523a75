"""Before a graph serves, it is timed on batches of many shapes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_server.runtime.batch_timing import time_budgets, time_shapes
from headwaiter_server.runtime.graph import GraphOutputs, at_once
from headwaiter_server.runtime.packing import PackedBatch


class SimulatedGraph:
    """A graph with a simulated clock, on which a batch takes the time that the test defines.

    Attributes:
        now_s: the time on the clock, in seconds.
        batches: the batches that have run.
    """

    turn = staticmethod(at_once)
    on_gpu = True

    def __init__(self, seconds: Callable[[PackedBatch], float]) -> None:
        self.now_s = 0.0
        self.batches: list[PackedBatch] = []
        self._seconds = seconds

    def perf_counter(self) -> float:
        return self.now_s

    def prepare(self, batch: PackedBatch) -> PackedBatch:
        return batch

    def run(self, batch: PackedBatch, *, hidden: bool) -> GraphOutputs:
        assert not hidden
        self.batches.append(batch)
        self.now_s += self._seconds(batch)
        return GraphOutputs(None, None)


@contextmanager
def _simulated(seconds: Callable[[PackedBatch], float]) -> Iterator[Any]:
    graph = SimulatedGraph(seconds)
    with patch("headwaiter_server.runtime.batch_timing.time", graph):
        yield graph


MANIFEST = Manifest(vocabulary_size=7, max_tokens=512)
BUDGETS = [128, 256, 512, 1024, 2048]


def test_budgets_are_compared_in_rounds_on_sequences_of_typical_length() -> None:
    with _simulated(lambda batch: 1e-3 + 1e-5 * batch.tokens) as graph:
        rates = time_budgets(graph, MANIFEST, BUDGETS, time_s=10)
    assert list(rates) == BUDGETS
    assert {len(measured) for measured in rates.values()} == {9}
    for budget, measured in rates.items():
        filled = budget // 48 * 48
        assert measured == pytest.approx([filled / (1e-3 + 1e-5 * filled)] * 9)
    assert {length for batch in graph.batches for length in batch.lengths} == {48}


def test_the_wait_for_a_turn_on_the_device_does_not_count() -> None:
    def seconds(batch: PackedBatch) -> float:
        return 1e-3 + 1e-5 * batch.tokens

    with _simulated(seconds) as graph:
        alone = time_budgets(graph, MANIFEST, BUDGETS, time_s=1), time_shapes(graph, MANIFEST, 512, 1 << 20, time_s=1)

    def wait(run: Callable[[], float]) -> float:
        graph.now_s += 100.0
        return run()

    with _simulated(seconds) as graph:
        graph.turn = wait
        beside = time_budgets(graph, MANIFEST, BUDGETS, time_s=1), time_shapes(graph, MANIFEST, 512, 1 << 20, time_s=1)
    assert [list(measured) for measured in beside] == [list(measured) for measured in alone]


def test_larger_budgets_are_not_tried_after_two_in_a_row_were_no_faster() -> None:
    with _simulated(lambda batch: 1e-5 * batch.tokens**1.5) as graph:
        assert list(time_budgets(graph, MANIFEST, BUDGETS, time_s=10)) == [128, 256, 512]


@pytest.mark.parametrize("slowness", [1, 10, 1000])
def test_on_slow_hardware_fewer_budgets_are_tried_and_only_the_first_may_exceed_the_time(slowness: int) -> None:
    with _simulated(lambda batch: slowness * (1e-3 + 1e-4 * batch.tokens)) as graph:
        rates = time_budgets(graph, MANIFEST, BUDGETS, time_s=2)
        smallest_s = 3 * slowness * (1e-3 + 1e-4 * 128)
    assert list(rates) == BUDGETS[: len(rates)]
    assert graph.now_s <= 2 * 1.5 or list(rates) == [128]
    assert graph.now_s <= max(2 * 1.5, 2 * smallest_s)


def test_a_budget_that_does_not_fit_in_memory_ends_the_comparison() -> None:
    def seconds(batch: PackedBatch) -> float:
        if batch.tokens > 512:
            raise MemoryError
        return 1e-3

    with _simulated(seconds) as graph:
        assert list(time_budgets(graph, MANIFEST, BUDGETS, time_s=10)) == [128, 256, 512]
        with pytest.raises(MemoryError):
            time_budgets(graph, MANIFEST, [1024, 2048], time_s=10)


@given(
    max_tokens=st.integers(2, 600),
    min_tokens=st.integers(0, 2),
    tokens=st.integers(1, 2000),
    cells=st.integers(1, 1 << 20),
)
def test_timed_shapes_are_within_the_limits_of_the_model_and_of_the_batch(
    max_tokens: int, min_tokens: int, tokens: int, cells: int
) -> None:
    manifest = Manifest(vocabulary_size=7, max_tokens=max_tokens, min_tokens=min_tokens)
    with _simulated(lambda batch: 1e-6) as graph:
        timed = time_shapes(graph, manifest, tokens, cells, time_s=10)
    assert set(timed) == {tuple(batch.lengths.tolist()) for batch in graph.batches}
    for batch in graph.batches:
        assert max(1, min_tokens) <= batch.lengths.min() <= batch.longest_tokens <= max_tokens
        within_cells = batch.sequences * batch.longest_tokens**2 <= cells
        assert batch.sequences == 1 or (batch.tokens <= tokens and within_cells)
        assert 0 <= batch.rows.min() <= batch.rows.max() < 7
    assert (max_tokens,) in timed


def test_the_time_of_a_shape_is_the_shortest_of_several_runs() -> None:
    hiccups = iter([1.0] + [1e-3] * 10_000)
    with _simulated(lambda batch: next(hiccups)) as graph:
        timed = time_shapes(graph, MANIFEST, 256, 1 << 20, time_s=10)
    assert list(timed.values()) == pytest.approx([1e-3] * len(timed))


def test_on_slow_hardware_the_largest_shapes_are_left_out_but_at_least_five_are_timed() -> None:
    with _simulated(lambda batch: 1e-3 * batch.tokens) as graph:
        timed = time_shapes(graph, MANIFEST, 256, 1 << 20, time_s=1)
        assert graph.now_s <= 1
    assert (1,) in timed
    assert (512,) not in timed
    with _simulated(lambda batch: 60.0) as graph:
        assert len(time_shapes(graph, MANIFEST, 256, 1 << 20, time_s=1)) == 5
        assert len(graph.batches) == 5


def test_shapes_that_do_not_fit_in_memory_are_left_out() -> None:
    def seconds(batch: PackedBatch) -> float:
        if batch.sequences * batch.longest_tokens**2 > most_cells:
            raise MemoryError
        return 1e-3

    with _simulated(seconds) as graph:
        most_cells = 1 << 16
        timed = time_shapes(graph, MANIFEST, 256, 1 << 20, time_s=10)
        assert len(timed) > 5
        assert (512,) not in timed
        most_cells = 0
        with pytest.raises(MemoryError):
            time_shapes(graph, MANIFEST, 256, 1 << 20, time_s=10)


def test_the_timed_shapes_determine_every_term_of_the_cost_model() -> None:
    with _simulated(lambda batch: 1e-6) as graph:
        shapes = list(time_shapes(graph, MANIFEST, 128, 1 << 20, time_s=10))
    terms = [(1, sum(shape), len(shape) * max(shape), len(shape) * max(shape) ** 2) for shape in shapes]
    relative = np.array(terms) / np.array([sum(shape) + 16.0 for shape in shapes])[:, None]
    assert np.linalg.cond(relative / np.linalg.norm(relative, axis=0)) < 30


def test_a_feature_model_is_timed_on_features() -> None:
    with _simulated(lambda batch: 1e-6) as graph:
        time_shapes(graph, Manifest(feature_width=3, max_tokens=8), 32, 999, time_s=10)
    assert all(batch.rows.shape == (batch.tokens, 3) for batch in graph.batches)
