"""A queue remembers the latest batches that ran: lengths, shared requests and times, but no contents."""

import asyncio

import pytest

from tests.server.scheduling.fakes import POISON, Harness


async def test_a_batch_is_remembered_with_the_lengths_and_the_requests_of_its_sequences(harness: Harness) -> None:
    tasks = await harness.submit_behind_held_batch([[1, 1], [2, 2]], [[3, 3, 3]])
    harness.clock.now_s = 4.0
    harness.device.release()
    await asyncio.gather(*tasks)
    held, batch = harness.queue.recent_batches
    assert list(held.lengths) == [1]
    by_request: dict[int, list[int]] = {}
    for length, number in zip(batch.lengths, batch.request_numbers, strict=True):
        by_request.setdefault(number, []).append(length)
    assert sorted(by_request.values()) == [[2, 2], [3]]
    assert not by_request.keys() & set(held.request_numbers)
    assert (batch.end_s, batch.measured_s) == (4.0, 0.0)
    # The costs of a launch and of 7 tokens, scaled by the correction, which one slow batch does not change.
    assert batch.predicted_s == pytest.approx(0.5 + 7 * 0.25)


async def test_only_the_latest_64_batches_are_remembered(harness: Harness) -> None:
    for number in range(70):
        await harness.submit([number] * (1 + number % 7))
    assert [len(batch.lengths) for batch in harness.queue.recent_batches] == [1] * 64
    assert [list(batch.lengths) for batch in harness.queue.recent_batches] == [[1 + n % 7] for n in range(6, 70)]


async def test_only_the_part_of_a_failed_batch_that_ran_is_remembered(harness: Harness) -> None:
    outcome = await harness.submit([POISON], [2, 2], failures={})
    assert list(outcome.failures) == [0]
    assert [list(batch.lengths) for batch in harness.queue.recent_batches] == [[2]]
