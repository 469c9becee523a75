"""A batch whose halves run was too large for the memory, which lowers the limits; other failures do not."""

import asyncio

import pytest

from headwaiter_server.scheduling.observer import FailureCause
from tests.server.scheduling.fakes import POISON, UNLIMITED, Harness, sums


@pytest.mark.parametrize(
    ("most_tokens", "values", "cause", "tokens_limit"),
    [
        # The whole batch is too large; each half fits.
        (4, [1] * 8, FailureCause.SIZE, 4),
        # The halves are too large as well.
        (2, [1] * 8, FailureCause.SIZE, 2),
        # A faulty sequence, and memory for the whole batch.
        (UNLIMITED, [1, 2, POISON, 4, 5, 6, 7, 8], FailureCause.SEQUENCE, 8),
        # A faulty sequence in the first half; the second half does not fit.
        (2, [1, 2, POISON, 4, 5, 6, 7, 8], FailureCause.SIZE, 2),
    ],
)
async def test_a_batch_that_fails_while_its_halves_run_lowers_the_limits(
    harness: Harness, most_tokens: int, values: list[int], cause: FailureCause, tokens_limit: int
) -> None:
    held, *tasks = await harness.submit_behind_held_batch(*([[value]] for value in values))
    harness.device.most_tokens = most_tokens
    harness.device.release()
    await held
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [value for value, answer in zip(values, answers, strict=True) if isinstance(answer, Exception)] == [
        value for value in values if value == POISON
    ]
    await asyncio.sleep(0.01)
    assert harness.observer.failure_causes == [cause]
    assert harness.queue.limits.current.tokens == tokens_limit


async def test_after_a_memory_failure_full_batches_fit(harness: Harness) -> None:
    harness.device.most_tokens = 4
    outcome = await harness.submit(*([value] for value in range(48)))
    assert sums(outcome) == list(range(48))
    # Of six full batches, the first fails, and perhaps those that were planned before its halves had run.
    assert 1 <= sum(len(batch) > 4 for batch in harness.device.batches) <= 3
