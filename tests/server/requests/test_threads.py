"""Threads for requests: interactive work first, and connections take turns."""

import asyncio
import threading
from collections.abc import Generator
from functools import partial

import pytest

from headwaiter_proto.rules.errors import Overloaded
from headwaiter_server.requests.shares import InputLimit
from headwaiter_server.requests.threads import PriorityThreads
from headwaiter_server.scheduling.fair_start import Priority

_INTERACTIVE, _BULK = Priority.INTERACTIVE, Priority.BULK


async def _occupied(threads: PriorityThreads) -> tuple[threading.Event, list["asyncio.Task[bool]"]]:
    """Let functions occupy both threads until the event is set."""
    release = threading.Event()
    running = [asyncio.create_task(threads.run(partial(release.wait, 30), _INTERACTIVE, "busy")) for _ in range(2)]
    await asyncio.sleep(0)
    return release, running


async def _order(
    threads: PriorityThreads, work: list[tuple[str, Priority, str, int]], release: threading.Event
) -> list[str]:
    """Return the names of the steps in the order in which they ran, one after another."""
    ran: list[str] = []

    def steps(name: str, count: int) -> Generator[None, None, None]:
        for number in range(count):
            if number:
                yield
            ran.append(name)

    tasks = []
    for name, priority, connection, count in work:
        tasks.append(asyncio.create_task(threads.run_steps(steps(name, count), priority, connection)))
        await asyncio.sleep(0)
    release.set()
    await asyncio.gather(*tasks)
    return ran


async def test_a_connection_with_one_call_waits_for_one_call_of_each_other_connection() -> None:
    threads = PriorityThreads("test", 2)
    release, running = await _occupied(threads)
    work = [(f"a{number}", _INTERACTIVE, "a", 1) for number in range(20)] + [("b", _INTERACTIVE, "b", 1)]
    ran = await _order(threads, work, release)
    await asyncio.gather(*running)
    assert ran.index("b") <= 2
    assert [each for each in ran if each != "b"] == [f"a{number}" for number in range(20)]


async def test_a_call_of_another_connection_waits_for_few_steps_of_long_calls() -> None:
    threads = PriorityThreads("test", 2)
    release, running = await _occupied(threads)
    work = [("first", _INTERACTIVE, "a", 30), ("second", _INTERACTIVE, "a", 30), ("other", _INTERACTIVE, "b", 1)]
    ran = await _order(threads, work, release)
    await asyncio.gather(*running)
    assert ran.index("other") <= 4


async def test_calls_of_one_connection_end_as_early_as_without_steps() -> None:
    threads = PriorityThreads("test", 2)
    release, running = await _occupied(threads)
    work = [(f"call {number}", _INTERACTIVE, "a", 8) for number in range(16)]
    ran = await _order(threads, work, release)
    await asyncio.gather(*running)
    ends = sorted(len(ran) - ran[::-1].index(name) for name in {*ran})
    # With a step of each call in turn, all calls would end among the last 16 steps.
    assert ends[7] <= len(ran) * 0.75


async def test_interactive_work_runs_before_bulk_work_which_leaves_one_thread() -> None:
    threads = PriorityThreads("test", 2)
    release, running = await _occupied(threads)
    ran = await _order(threads, [("bulk", _BULK, "a", 1), ("interactive", _INTERACTIVE, "a", 1)], release)
    await asyncio.gather(*running)
    assert ran == ["interactive", "bulk"]
    blocked = threading.Event()
    bulk = [asyncio.create_task(threads.run(partial(blocked.wait, 30), _BULK, "a")) for _ in range(3)]
    await asyncio.sleep(0)
    assert await threads.run(lambda: 7, _INTERACTIVE, "a") == 7
    blocked.set()
    assert await asyncio.gather(*bulk) == [True] * 3


async def test_a_cancelled_call_does_not_run_and_gives_its_thread_to_the_next() -> None:
    threads = PriorityThreads("test", 2)
    release, running = await _occupied(threads)
    ran: list[str] = []
    cancelled = asyncio.create_task(threads.run(partial(ran.append, "cancelled"), _INTERACTIVE, "a"))
    next_one = asyncio.create_task(threads.run(partial(ran.append, "next"), _INTERACTIVE, "a"))
    await asyncio.sleep(0)
    cancelled.cancel()
    release.set()
    await asyncio.gather(next_one, *running)
    assert ran == ["next"]
    assert cancelled.cancelled()


def test_one_connection_holds_at_most_as_many_bytes_of_inputs_as_are_free() -> None:
    limit = InputLimit(100)
    with limit.held("a", 40):
        with pytest.raises(Overloaded) as refused, limit.held("a", 20):
            pass
        assert (refused.value.limit, refused.value.retry_after_s) == (100, 1.0)
        with limit.held("b", 30):
            pass
    with limit.held("a", 50):
        pass
