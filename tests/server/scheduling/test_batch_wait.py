"""After a batch of several requests, requests that arrive nearly together share a batch."""

import asyncio
import os

import pytest

from headwaiter_server.scheduling.job import Outcome
from tests.support.server.fakes import LIMITS, Harness


async def test_after_a_batch_of_one_request_the_device_is_not_held(harness: Harness) -> None:
    await harness.submit([1])
    await asyncio.gather(*await _submit_in_sequence(harness, [4], [5]))
    assert harness.device.batches == [[[1]], [[4]], [[5]]]


async def test_the_device_is_held_while_more_requests_arrive(harness: Harness) -> None:
    await _answer_two_together(harness)
    await asyncio.gather(*await _submit_in_sequence(harness, [4], [5], [6], turns=5))
    assert harness.device.batches == [[[4], [5], [6]]]


async def test_the_device_is_not_held_for_long_without_another_request(harness: Harness) -> None:
    await _answer_two_together(harness)
    await asyncio.gather(*await _submit_in_sequence(harness, [4], [5], turns=50))
    assert harness.device.batches == [[[4]], [[5]]]


@pytest.mark.parametrize(("tokens", "planned"), [(LIMITS.tokens, True), (1, False)], ids=["full", "not full"])
async def test_a_full_batch_does_not_wait(harness: Harness, tokens: int, planned: bool) -> None:
    await _answer_two_together(harness)
    before = len(harness.observer.close_reasons)
    (task,) = await _submit_in_sequence(harness, [1] * tokens, turns=3)
    assert (len(harness.observer.close_reasons) > before) is planned
    await task


async def test_a_draining_scheduler_does_not_hold_the_device(harness: Harness) -> None:
    await _answer_two_together(harness)
    before = len(harness.observer.close_reasons)
    task = harness.submit([1])
    await asyncio.sleep(0)
    draining = asyncio.create_task(harness.scheduler.drain(30.0))
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(harness.observer.close_reasons) > before
    await asyncio.gather(task, draining)


async def test_the_device_is_not_held_if_another_process_takes_the_core(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow_yield() -> None:
        harness.clock.now_s += 0.01

    await _answer_two_together(harness)
    before = len(harness.observer.close_reasons)
    monkeypatch.setattr(os, "sched_yield", slow_yield)
    (task,) = await _submit_in_sequence(harness, [1], turns=3)
    assert len(harness.observer.close_reasons) > before
    await task


async def _answer_two_together(harness: Harness) -> None:
    """Run a batch of two requests, and forget all batches."""
    held, *both = await harness.submit_behind_held_batch([[2]], [[3]])
    harness.device.release()
    await asyncio.gather(held, *both)
    assert harness.device.batches == [[[1]], [[2], [3]]]
    harness.device.batches.clear()


async def _submit_in_sequence(harness: Harness, *sequences: list[int], turns: int = 1) -> list[asyncio.Task[Outcome]]:
    """Submit requests of one sequence each, with `turns` turns of the event loop between them."""
    tasks = []
    for sequence in sequences:
        tasks.append(harness.submit(sequence))
        for _ in range(turns):
            await asyncio.sleep(0)
    return tasks
