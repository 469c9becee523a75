"""Requests that come nearly together run together, where those before them did."""

import asyncio

from headwaiter_server.batching.job import Outcome
from tests.server.batching.stand_ins import Bench, sums


async def test_who_was_answered_together_runs_together_again(bench: Bench) -> None:
    ahead, *both = await bench.submit_behind([[2]], [[3]])
    bench.device.release()
    await asyncio.gather(ahead, *both)
    again = await _submit_in_turn(bench)
    assert [sums(outcome) for outcome in await asyncio.gather(*again)] == [[4], [5]]
    assert bench.device.batches == [[[1]], [[2], [3]], [[4], [5]]]


async def test_who_was_alone_is_not_kept_for_company(bench: Bench) -> None:
    await bench.submit([1])
    again = await _submit_in_turn(bench)
    await asyncio.gather(*again)
    assert bench.device.batches == [[[1]], [[4]], [[5]]]


async def _submit_in_turn(bench: Bench) -> list[asyncio.Task[Outcome]]:
    """Submit a request, and another one turn of the event loop later."""
    first = bench.submit([4])
    await asyncio.sleep(0)
    return [first, bench.submit([5])]
