"""Batch limits follow the memory: lower after a failure, higher after many successes, and few batches fail."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwaiter_server.scheduling.adaptive_limits import AdaptiveLimits, LimitState
from headwaiter_server.scheduling.cost import BatchLimits, Shape

LARGEST = BatchLimits(tokens=1000, cells=100_000, padded_tokens=2000)


@pytest.mark.parametrize(
    ("before", "usage", "share", "proven", "patience"),
    [
        # Nothing is known to fit but the halves.
        (LimitState(), 1.0, 0.5, 0.0, 16),
        # Smaller batches are known to fit.
        (LimitState(proven=0.75), 1.0, 0.75, 0.75, 16),
        # A size that used to fit does not fit any more: only the halves do.
        (LimitState(proven=1.0), 1.0, 0.5, 0.5, 16),
        (LimitState(share=0.5, proven=0.5), 0.25, 0.125, 0.125, 16),
        # A raise was too much: return to the size that fitted, and wait twice as long.
        (LimitState(share=0.7, proven=0.5, patience_batches=32, proven_at_raise=0.5), 0.7, 0.5, 0.5, 64),
        (LimitState(share=0.7, proven=0.5, patience_batches=1024, proven_at_raise=0.5), 0.7, 0.5, 0.5, 1024),
        # A batch that was planned under higher limits does not raise them.
        (LimitState(share=0.25, proven=0.25), 1.0, 0.25, 0.25, 16),
    ],
)
def test_a_memory_failure_lowers_the_limits_to_what_fits(
    before: LimitState, usage: float, share: float, proven: float, patience: int
) -> None:
    after = before.after_memory_failure(usage)
    assert (after.share, after.proven, after.patience_batches) == (share, proven, patience)
    assert (after.succeeded_batches, after.proven_at_raise) == (0, None)


@pytest.mark.parametrize(
    ("before", "full", "share", "succeeded", "patience"),
    [
        # Batches that are not full say nothing about the limits.
        (LimitState(share=0.5, proven=0.5, succeeded_batches=15), False, 0.5, 15, 16),
        (LimitState(share=0.5, proven=0.5, succeeded_batches=14), True, 0.5, 15, 16),
        (LimitState(share=0.5, proven=0.5, succeeded_batches=15), True, 0.5 * 2**0.5, 0, 16),
        # The largest limits are never exceeded.
        (LimitState(share=0.9, proven=0.5, succeeded_batches=15), True, 1.0, 0, 16),
        (LimitState(), True, 1.0, 0, 16),
        # After a raise that proved right, the next raise comes soon.
        (LimitState(0.5, 0.5, 64, succeeded_batches=63, proven_at_raise=0.4), True, 0.5 * 2**0.5, 0, 16),
        (LimitState(1.0, 1.0, 64, succeeded_batches=63, proven_at_raise=0.7), True, 1.0, 0, 16),
        # A batch that is hardly larger than before proves nothing.
        (LimitState(0.5, 0.5, 64, succeeded_batches=63, proven_at_raise=0.45), True, 0.5 * 2**0.5, 0, 64),
        # No batch was larger than before the raise, so nothing is known about the raise.
        (LimitState(0.5, 0.3, 64, succeeded_batches=63, proven_at_raise=0.35), True, 0.5 * 2**0.5, 0, 64),
    ],
)
def test_full_batches_that_succeed_raise_the_limits(
    before: LimitState, full: bool, share: float, succeeded: int, patience: int
) -> None:
    after = before.after_success(0.3, full=full)
    assert after.share == pytest.approx(share)
    assert (after.succeeded_batches, after.patience_batches) == (succeeded, patience)


def run_full_batches(state: LimitState, fits: float, batches: int, granularity: float = 1.0) -> tuple[LimitState, int]:
    """Run full batches on a memory that fits a share; return the last state, and the number of failed batches."""
    failed = 0
    for _ in range(batches):
        usage = granularity * state.share
        if usage <= fits:
            state = state.after_success(usage, full=True)
        else:
            state = state.after_memory_failure(usage)
            failed += 1
    return state, failed


@settings(max_examples=20)
@given(fits=st.floats(0.05, 1.0), granularity=st.floats(0.55, 1.0))
def test_few_of_many_full_batches_fail(fits: float, granularity: float) -> None:
    state, failed = run_full_batches(LimitState(), fits, 5000, granularity)
    assert failed <= 20
    # The limits are not much lower than what fits.
    assert state.share >= fits / 2.1
    # When memory is free again, the limits recover.
    state, failed = run_full_batches(state, 1.0, 10_000, granularity)
    assert (state.share, failed) == (1.0, 0)


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
        limits.note_success(Shape.of([999]), full=False)
    assert limits.current.tokens == 500


@pytest.mark.parametrize(
    ("lengths", "tokens"),
    [
        # A full batch: its size may be the cause.
        ([10] * 100, 500),
        # A small batch: more likely, a sequence is the cause.
        ([10] * 40, 1000),
        ([999], 1000),
    ],
)
def test_the_limits_are_halved_until_the_cause_of_a_failure_is_known(lengths: list[int], tokens: int) -> None:
    limits = AdaptiveLimits(LARGEST)
    with limits.suspected(Shape.of(lengths)):
        assert limits.current.tokens == tokens
    assert limits.current == LARGEST
