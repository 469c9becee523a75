"""Requests that come nearly together run together, where those before them did."""

import asyncio
import os

import pytest

from headwaiter_server.scheduling.batch_wait import Company
from headwaiter_server.scheduling.job import Outcome
from tests.server.scheduling.stand_ins import LIMITS, Bench, sums


async def test_who_was_answered_together_runs_together_again(bench: Bench) -> None:
    await _answer_two_together(bench)
    again = await _submit_in_turn(bench, [4], [5])
    assert [sums(outcome) for outcome in await asyncio.gather(*again)] == [[4], [5]]
    assert bench.device.batches == [[[4], [5]]]


async def test_who_was_alone_is_not_kept_for_company(bench: Bench) -> None:
    await bench.submit([1])
    await asyncio.gather(*await _submit_in_turn(bench, [4], [5]))
    assert bench.device.batches == [[[1]], [[4]], [[5]]]


async def test_company_is_kept_for_as_long_as_more_comes(bench: Bench) -> None:
    await _answer_two_together(bench)
    await asyncio.gather(*await _submit_in_turn(bench, [4], [5], [6], turns=5))
    assert bench.device.batches == [[[4], [5], [6]]]


async def test_who_stays_alone_is_not_kept_for_long(bench: Bench) -> None:
    await _answer_two_together(bench)
    await asyncio.gather(*await _submit_in_turn(bench, [4], [5], turns=50))
    assert bench.device.batches == [[[4]], [[5]]]


async def test_six_sequences_are_kept_no_longer(bench: Bench) -> None:
    await _answer_two_together(bench)
    bench.device.hold()
    tasks = await _submit_in_turn(bench, *([each] for each in range(7)), turns=3)
    bench.device.release()
    await asyncio.gather(*tasks)
    assert bench.device.batches == [[[each] for each in range(6)], [[6]]]


@pytest.mark.parametrize(("tokens", "planned"), [(LIMITS.tokens, True), (1, False)], ids=["full", "not full"])
async def test_a_full_batch_is_not_kept_waiting(bench: Bench, tokens: int, planned: bool) -> None:
    await _answer_two_together(bench)
    before = len(bench.log.closed)
    (task,) = await _submit_in_turn(bench, [1] * tokens, turns=3)
    assert (len(bench.log.closed) > before) is planned
    await task


async def test_while_the_server_stops_nobody_is_kept(bench: Bench) -> None:
    await _answer_two_together(bench)
    before = len(bench.log.closed)
    task = bench.submit([1])
    await asyncio.sleep(0)
    draining = asyncio.create_task(bench.scheduler.drain(30.0))
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(bench.log.closed) > before
    await asyncio.gather(task, draining)


async def test_beside_a_process_that_computes_nobody_is_kept(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def yield_for_long() -> None:
        bench.clock.now_s += 0.01

    await _answer_two_together(bench)
    before = len(bench.log.closed)
    monkeypatch.setattr(os, "sched_yield", yield_for_long)
    (task,) = await _submit_in_turn(bench, [1], turns=3)
    assert len(bench.log.closed) > before
    await task


def test_turns_are_counted_from_the_last_that_came() -> None:
    company = Company()
    company.served(together=True)
    company.came()
    assert [company.keep_another_turn(1) for _ in range(10)] == [True] * 8 + [False] * 2
    company.came()
    assert company.keep_another_turn(2)


async def _answer_two_together(bench: Bench) -> None:
    """Have the last batch be one of two requests, and forget all batches."""
    ahead, *both = await bench.submit_behind([[2]], [[3]])
    bench.device.release()
    await asyncio.gather(ahead, *both)
    assert bench.device.batches == [[[1]], [[2], [3]]]
    bench.device.batches.clear()


async def _submit_in_turn(bench: Bench, *sequences: list[int], turns: int = 1) -> list[asyncio.Task[Outcome]]:
    """Submit requests of one sequence, each so many turns of the event loop after the one before."""
    tasks = []
    for sequence in sequences:
        tasks.append(bench.submit(sequence))
        for _ in range(turns):
            await asyncio.sleep(0)
    return tasks
