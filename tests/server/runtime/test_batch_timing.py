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
from headwaiter_server.runtime.batch_timing import Lengths, made_up_batch, time_budgets, time_shapes

MANIFEST = Manifest(vocabulary_size=7, max_tokens=512)
BUDGETS = [128, 256, 512, 1024, 2048]
GRAPH: Any = None


@contextmanager
def _timed(seconds: Callable[[Lengths], float]) -> Iterator[list[tuple[Lengths, float]]]:
    """Let each batch take the seconds that a test defines; yield the batches that have run, with their seconds."""
    ran: list[tuple[Lengths, float]] = []

    def time_batch(_graph: object, _manifest: Manifest, lengths: Lengths) -> float:
        ran.append((lengths, seconds(lengths)))
        return ran[-1][1]

    with patch("headwaiter_server.runtime.batch_timing.time_batch", time_batch):
        yield ran


def test_budgets_are_compared_in_rounds_on_sequences_of_typical_length() -> None:
    with _timed(lambda lengths: 1e-3 + 1e-5 * sum(lengths)) as ran:
        rates = time_budgets(GRAPH, MANIFEST, BUDGETS, time_s=10)
    assert list(rates) == BUDGETS
    assert {len(measured) for measured in rates.values()} == {9}
    for budget, measured in rates.items():
        filled = budget // 48 * 48
        assert measured == pytest.approx([filled / (1e-3 + 1e-5 * filled)] * 9)
    assert {length for lengths, _ in ran for length in lengths} == {48}


def test_larger_budgets_are_not_tried_after_two_in_a_row_were_no_faster() -> None:
    with _timed(lambda lengths: 1e-5 * sum(lengths) ** 1.5):
        assert list(time_budgets(GRAPH, MANIFEST, BUDGETS, time_s=10)) == [128, 256, 512]


@pytest.mark.parametrize("slowness", [1, 10, 1000])
def test_on_slow_hardware_fewer_budgets_are_tried_and_only_the_first_may_exceed_the_time(slowness: int) -> None:
    with _timed(lambda lengths: slowness * (1e-3 + 1e-4 * sum(lengths))) as ran:
        rates = time_budgets(GRAPH, MANIFEST, BUDGETS, time_s=2)
    spent_s, smallest_s = sum(each_s for _, each_s in ran), 3 * slowness * (1e-3 + 1e-4 * 128)
    assert list(rates) == BUDGETS[: len(rates)]
    assert spent_s <= 2 * 1.5 or list(rates) == [128]
    assert spent_s <= max(2 * 1.5, 2 * smallest_s)


def test_a_budget_that_does_not_fit_in_memory_ends_the_comparison() -> None:
    def seconds(lengths: Lengths) -> float:
        if sum(lengths) > 512:
            raise MemoryError
        return 1e-3

    with _timed(seconds):
        assert list(time_budgets(GRAPH, MANIFEST, BUDGETS, time_s=10)) == [128, 256, 512]
        with pytest.raises(MemoryError):
            time_budgets(GRAPH, MANIFEST, [1024, 2048], time_s=10)


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
    with _timed(lambda _: 1e-6) as ran:
        timed = time_shapes(GRAPH, manifest, tokens, cells, time_s=10)
    assert set(timed) == {lengths for lengths, _ in ran}
    for lengths in timed:
        assert max(1, min_tokens) <= min(lengths) <= max(lengths) <= max_tokens
        assert len(lengths) == 1 or (sum(lengths) <= tokens and len(lengths) * max(lengths) ** 2 <= cells)
    assert (max_tokens,) in timed


def test_the_time_of_a_shape_is_the_shortest_of_several_runs() -> None:
    hiccups = iter([1.0] + [1e-3] * 10_000)
    with _timed(lambda _: next(hiccups)):
        timed = time_shapes(GRAPH, MANIFEST, 256, 1 << 20, time_s=10)
    assert set(timed.values()) == {1e-3}


def test_on_slow_hardware_the_largest_shapes_are_left_out_but_at_least_five_are_timed() -> None:
    with _timed(lambda lengths: 1e-3 * sum(lengths)) as ran:
        timed = time_shapes(GRAPH, MANIFEST, 256, 1 << 20, time_s=1)
    assert sum(each_s for _, each_s in ran) <= 1
    assert (1,) in timed
    assert (512,) not in timed
    with _timed(lambda _: 60.0) as ran:
        assert len(time_shapes(GRAPH, MANIFEST, 256, 1 << 20, time_s=1)) == len(ran) == 5


def test_shapes_that_do_not_fit_in_memory_are_left_out() -> None:
    def seconds(lengths: Lengths) -> float:
        if len(lengths) * max(lengths) ** 2 > most_cells:
            raise MemoryError
        return 1e-3

    with _timed(seconds):
        most_cells = 1 << 16
        timed = time_shapes(GRAPH, MANIFEST, 256, 1 << 20, time_s=10)
        assert len(timed) > 5
        assert (512,) not in timed
        most_cells = 0
        with pytest.raises(MemoryError):
            time_shapes(GRAPH, MANIFEST, 256, 1 << 20, time_s=10)


def test_the_timed_shapes_determine_every_term_of_the_cost_model() -> None:
    with _timed(lambda _: 1e-6):
        shapes = list(time_shapes(GRAPH, MANIFEST, 128, 1 << 20, time_s=10))
    terms = [(1, sum(shape), len(shape) * max(shape), len(shape) * max(shape) ** 2) for shape in shapes]
    relative = np.array(terms) / np.array([sum(shape) + 16.0 for shape in shapes])[:, None]
    assert np.linalg.cond(relative / np.linalg.norm(relative, axis=0)) < 30


def test_a_batch_that_is_timed_has_ids_of_the_vocabulary_or_features() -> None:
    ids = made_up_batch(MANIFEST, (9, 2))
    assert (ids.lengths.tolist(), ids.rows.min(), ids.rows.max()) == ([9, 2], 0, 6)
    assert made_up_batch(Manifest(feature_width=3), (9, 2)).rows.shape == (11, 3)
