"""Batch limits follow the memory: lower after a failure, higher after many successes, and few batches fail."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwaiter_server.scheduling.adaptive_limits import AdaptiveLimits
from headwaiter_server.scheduling.cost import BatchLimits, CostModel, Shape

LARGEST = BatchLimits(tokens=1000, cells=100_000, padded_tokens=2000)


def batch_of(tokens: int) -> Shape:
    """Return a batch of sequences of one token, which exceeds only the limit of tokens."""
    return Shape.of([1] * tokens)


def run_large_batches(limits: AdaptiveLimits, fits_tokens: int, batches: int, fill: float = 1.0) -> int:
    """Run batches that fill a part of the limits, on a memory that fits some tokens; return the number of failures."""
    failed = 0
    for _ in range(batches):
        shape = batch_of(max(2, round(fill * limits.current.tokens)))
        if shape.tokens <= fits_tokens:
            limits.note_success(shape)
        else:
            limits.note_memory_failure(shape, MemoryError())
            failed += 1
    return failed


@settings(max_examples=5, deadline=None)
@given(fits_tokens=st.integers(50, 1000), fill=st.floats(0.55, 1.0))
def test_few_of_many_large_batches_fail_and_the_limits_recover(fits_tokens: int, fill: float) -> None:
    limits = AdaptiveLimits(LARGEST)
    assert run_large_batches(limits, fits_tokens, 5000, fill) <= 20
    # Batches are not much smaller than what fits.
    assert limits.current.tokens >= min(1000, fits_tokens / 2.1)
    # When memory is free again, the limits rise to the largest.
    assert run_large_batches(limits, 1000, 12_000, fill) == 0
    assert limits.current == LARGEST


@pytest.mark.parametrize(("tokens", "raised"), [(250, True), (249, False)])
def test_only_batches_of_half_the_limits_raise_them(tokens: int, raised: bool) -> None:
    limits = AdaptiveLimits(LARGEST)
    limits.note_memory_failure(batch_of(1000), MemoryError())
    assert limits.current.tokens == 500
    for _ in range(16):
        assert limits.current.tokens == 500
        limits.note_success(batch_of(tokens))
    assert limits.current.tokens == (707 if raised else 500)


def test_a_batch_that_was_planned_before_the_limits_were_lowered_does_not_raise_them() -> None:
    limits = AdaptiveLimits(LARGEST)
    limits.note_memory_failure(batch_of(400), MemoryError())
    limits.note_memory_failure(batch_of(1000), MemoryError())
    assert limits.current.tokens == 200


@pytest.mark.parametrize(
    ("lengths", "tokens", "cells"),
    [
        # Tokens decide: the batch takes all 1,000, its halves 500.
        ([10] * 100, 500, 50_000),
        # Attention cells decide: 10 × 100² of 100,000.
        ([100] + [10] * 9, 500, 50_000),
        # A batch below the limits: half of its usage.
        ([10] * 50, 250, 25_000),
    ],
)
def test_the_limits_are_lowered_by_the_usage_of_the_failed_batch(lengths: list[int], tokens: int, cells: int) -> None:
    limits = AdaptiveLimits(LARGEST)
    limits.note_memory_failure(Shape.of(lengths), MemoryError())
    assert (limits.current.tokens, limits.current.cells) == (tokens, cells)


def test_a_single_sequence_says_nothing_about_the_limits() -> None:
    limits = AdaptiveLimits(LARGEST)
    limits.note_memory_failure(Shape.of([10] * 100), MemoryError())
    for _ in range(40):
        limits.note_success(Shape.of([999]))
    assert limits.current.tokens == 500


@pytest.mark.parametrize(
    ("lengths", "tokens"),
    [
        # A large batch: its size may be the cause.
        ([10] * 100, 500),
        # A small batch: more likely, a sequence is the cause.
        ([10] * 40, 1000),
        ([999], 1000),
    ],
)
def test_the_limits_are_halved_until_the_cause_of_a_failure_is_known(lengths: list[int], tokens: int) -> None:
    limits = AdaptiveLimits(LARGEST)
    with limits.halved_for(Shape.of(lengths)):
        assert limits.current.tokens == tokens
    assert limits.current == LARGEST


@pytest.mark.parametrize(("launch_s", "tokens"), [(1.0, 500), (30.0, 1000), (200.0, 2000)])
def test_the_token_budget_follows_the_cost_after_32_large_batches_and_small_ones_do_not_count(
    launch_s: float, tokens: int
) -> None:
    cost = CostModel(launch_s=launch_s, token_s=1.0, padded_s=0.0, cell_s=0.0)
    limits = AdaptiveLimits(LARGEST, largest_budget_tokens=2000)
    for batch_tokens, batches in ((250, 31), (249, 100)):
        for _ in range(batches):
            limits.follow_cost(cost, batch_of(batch_tokens))
    assert limits.current == LARGEST
    limits.follow_cost(cost, batch_of(250))
    assert limits.current.tokens == tokens
    assert limits.current.padded_tokens == LARGEST.padded_tokens


@pytest.mark.parametrize("largest_budget_tokens", [0, 1999])
def test_the_token_budget_stays_below_its_limit(largest_budget_tokens: int) -> None:
    cost = CostModel(launch_s=200.0, token_s=1.0, padded_s=0.0, cell_s=0.0)
    limits = AdaptiveLimits(LARGEST, largest_budget_tokens=largest_budget_tokens)
    for _ in range(100):
        limits.follow_cost(cost, batch_of(1000))
    assert limits.current == LARGEST
