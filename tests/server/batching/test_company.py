"""Requests that come nearly together run together, where those before them did."""

import asyncio

import pytest

from headwaiter_server.batching.cost import BatchLimits
from headwaiter_server.batching.job import Outcome
from tests.server.batching.stand_ins import Bench, sums

ROOMY = BatchLimits(tokens=1000, cells=10**6)


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


@pytest.mark.parametrize(
    ("limits", "first"),
    [(ROOMY, 4), (BatchLimits(tokens=3, cells=10**6), 3)],
    ids=["four sequences", "a full batch"],
)
async def test_nobody_is_kept_for_more_than(limits: BatchLimits, first: int) -> None:
    bench = Bench(limits)
    await _answer_two_together(bench)
    bench.device.hold()
    tasks = await _submit_in_turn(bench, *([id_] for id_ in range(1, first + 2)), turns=3)
    bench.device.release()
    await asyncio.gather(*tasks)
    assert bench.device.batches[0] == [[id_] for id_ in range(1, first + 1)]
    await bench.scheduler.drain(1.0)


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
