"""Pages of metrics are written one at a time, and shared by all callers that wait."""

import asyncio
import time

import pytest

from headwaiter_server.metrics.page import Page, SharedPages


async def test_callers_share_the_page_that_is_begun_after_their_call() -> None:
    begun: list[int] = []
    first_begun, release = asyncio.Event(), asyncio.Event()

    async def write(_: str) -> Page:
        begun.append(len(begun))
        first_begun.set()
        await release.wait()
        return b"%d" % begun[-1], "text/plain"

    pages = SharedPages(write)
    first = asyncio.create_task(pages.get(""))
    await first_begun.wait()
    later = [asyncio.create_task(pages.get("")) for _ in range(100)]
    leaving = asyncio.create_task(pages.get(""))
    await asyncio.sleep(0)
    leaving.cancel()
    release.set()
    assert (await first)[0] == b"0"
    assert {content for content, _ in await asyncio.gather(*later)} == {b"1"}
    assert begun == [0, 1]


async def test_writing_pages_takes_at_most_a_tenth_of_the_time() -> None:
    async def write(_: str) -> Page:
        await asyncio.sleep(0.01)
        return b"", "text/plain"

    pages, started_s = SharedPages(write), time.monotonic()
    for _ in range(4):
        await pages.get("")
    assert time.monotonic() - started_s > 3 * 0.1


async def test_an_error_reaches_all_who_wait_and_the_next_page_is_written_at_once() -> None:
    async def write(_: str) -> Page:
        await asyncio.sleep(0.2)
        raise ZeroDivisionError

    pages = SharedPages(write)
    waiting = [asyncio.create_task(pages.get("")) for _ in range(3)]
    async with asyncio.timeout(1):
        for each in waiting:
            with pytest.raises(ZeroDivisionError):
                await each
        with pytest.raises(ZeroDivisionError):
            await pages.get("")
