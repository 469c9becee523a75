"""A drain answers what was admitted, and nothing else."""

import asyncio

import pytest

from headwaiter_server.errors import DeadlineExceeded, Unavailable
from tests.server.scheduling.stand_ins import Bench, sums


async def test_a_drain_that_takes_too_long_tells_who_waits_that_the_server_is_unavailable(bench: Bench) -> None:
    tasks = await bench.submit_behind([[2]], [[3]])
    assert await bench.scheduler.drain(0.0) == 3
    for task in tasks:
        with pytest.raises(Unavailable, match="try another replica"):
            await task
    assert bench.scheduler.queued_sequences == 0
    bench.device.release()


async def test_draining_answers_what_was_admitted_and_refuses_what_comes(bench: Bench) -> None:
    tasks = await bench.submit_behind([[2] * 8, [3] * 8], [[4]])
    draining = asyncio.create_task(bench.scheduler.drain(30.0))
    await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="shutting down: send the request to another replica"):
        await bench.submit([5])
    bench.device.release()
    await draining
    assert [sums(task.result()) for task in tasks] == [[1], [16, 24], [4]]


async def test_draining_ends_when_all_that_waits_has_expired(bench: Bench) -> None:
    (ahead,) = await bench.submit_behind()
    late = bench.submit([2], deadline_s=5.0)
    draining = asyncio.create_task(bench.scheduler.drain(30.0))
    await asyncio.sleep(0)
    bench.clock.now_s = 5.0
    bench.device.release()
    await asyncio.wait_for(draining, 5)
    assert sums(ahead.result()) == [1]
    with pytest.raises(DeadlineExceeded):
        await late


async def test_an_idle_scheduler_drains_at_once_and_still_serves_before(bench: Bench) -> None:
    assert sums(await bench.submit([1])) == [1]
    assert sums(await bench.submit([2])) == [2]
    await bench.scheduler.drain(30.0)
