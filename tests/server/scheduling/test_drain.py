"""A drain answers the admitted requests, and refuses new ones."""

import asyncio

import pytest

from headwaiter_proto.rules.errors import DeadlineExceeded, Unavailable
from tests.support.server.fakes import Harness, sums


async def test_a_drain_that_takes_too_long_fails_the_waiting_requests_with_unavailable(harness: Harness) -> None:
    tasks = await harness.submit_behind_held_batch([[2]], [[3]])
    assert await harness.scheduler.drain(0.0) == 3
    for task in tasks:
        with pytest.raises(Unavailable):
            await task
    assert harness.queue.queued_sequences == 0
    harness.device.release()


async def test_a_drain_ends_when_all_waiting_requests_have_expired(harness: Harness) -> None:
    (held,) = await harness.submit_behind_held_batch()
    late = harness.submit([2], deadline_s=5.0)
    draining = asyncio.create_task(harness.scheduler.drain(30.0))
    await asyncio.sleep(0)
    harness.clock.now_s = 5.0
    harness.device.release()
    await asyncio.wait_for(draining, 5)
    assert sums(held.result()) == [1]
    with pytest.raises(DeadlineExceeded):
        await late


@pytest.mark.parametrize("turns_until_the_drain", range(4))
@pytest.mark.parametrize("turns_until_the_cancellation", range(4))
async def test_a_drain_ends_when_all_waiting_requests_are_cancelled(
    turns_until_the_drain: int, turns_until_the_cancellation: int, harness: Harness
) -> None:
    waiting = [asyncio.ensure_future(harness.submit([2])) for _ in range(2)]
    for _ in range(turns_until_the_drain):
        await asyncio.sleep(0)
    draining = asyncio.create_task(harness.scheduler.drain(30.0))
    for _ in range(turns_until_the_cancellation):
        await asyncio.sleep(0)
    for each in waiting:
        each.cancel()
    harness.device.release()
    assert await asyncio.wait_for(draining, 5) == 0
    await asyncio.gather(*waiting, return_exceptions=True)
