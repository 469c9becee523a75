"""Pages of metrics are written one at a time, and shared by all callers that wait."""

import asyncio
import time

import pytest
from prometheus_client import CollectorRegistry

from headwaiter_server.metrics.page import Page, SharedPages, samples_of, write_page


async def test_callers_share_the_page_that_is_begun_after_their_call() -> None:
    begun: list[int] = []
    first_begun, release = asyncio.Event(), asyncio.Event()

    async def write(_: str) -> Page:
        begun.append(len(begun))
        first_begun.set()
        await release.wait()
        return Page(b"%d" % begun[-1], "text/plain", 0.0)

    pages = SharedPages(write)
    first = asyncio.create_task(pages.get(""))
    await first_begun.wait()
    later = [asyncio.create_task(pages.get("")) for _ in range(100)]
    leaving = asyncio.create_task(pages.get(""))
    await asyncio.sleep(0)
    leaving.cancel()
    release.set()
    assert (await first).content == b"0"
    assert {page.content for page in await asyncio.gather(*later)} == {b"1"}
    assert begun == [0, 1]


@pytest.mark.parametrize(("writing_s", "least_s", "most_s"), [(0.02, 3 * 0.18, 60), (0.0, 0, 0.3)])
async def test_writing_takes_at_most_a_tenth_of_the_time_and_waiting_for_others_does_not_count(
    writing_s: float, least_s: float, most_s: float
) -> None:
    async def write(_: str) -> Page:
        await asyncio.sleep(0.01)
        return Page(b"", "text/plain", writing_s)

    pages, started_s = SharedPages(write), time.monotonic()
    for _ in range(4):
        await pages.get("")
    assert least_s <= time.monotonic() - started_s < most_s


def test_single_samples_of_a_page_have_all_their_labels_and_no_others() -> None:
    page = b'# HELP a some a 1\n# TYPE a counter\na_total{m="a b"} 1.0\na_total{m="c"} 2.0\nb 3.0\nab 4.0\n# EOF\n'
    assert samples_of(page, ["a_total", "b"]) == b'a_total{m="a b"} 1.0\na_total{m="c"} 2.0\nb 3.0\n# EOF\n'
    assert samples_of(page, ["a", "m"]) == b"# EOF\n"


async def test_callers_cannot_ask_for_pages_of_their_own() -> None:
    release, written = asyncio.Event(), list[str]()

    async def write(accept: str) -> Page:
        written.append(accept)
        await release.wait()
        return await write_page(CollectorRegistry(), accept)

    pages = SharedPages(write)
    accepts = [f"application/openmetrics-text;version=1.0.{number}" for number in range(300)]
    accepts += ["text/plain;version=abc", "text/plain", "", "application/openmetrics-text"]
    waiting = [asyncio.create_task(pages.get(accept)) for accept in accepts]
    await asyncio.sleep(0)
    release.set()
    types = {page.content_type for page in await asyncio.gather(*waiting)}
    assert len(types) == len(written) == 3
    assert any(each.startswith("application/openmetrics-text; version=1.0.0") for each in types)


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
