"""Write the page of metrics."""

import asyncio
from collections.abc import Awaitable, Callable

from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

# The part of the time in which pages are written, however many callers ask for pages.
_WRITING_SHARE = 0.1

# A page of metrics, and its content type.
Page = tuple[bytes, str]


async def write_page(registry: Collector, accept: str) -> Page:
    """Return the page of a registry; `accept` is a header of the scrape."""
    encode, content_type = choose_encoder(accept)
    # Writing all series takes milliseconds; a thread keeps the event loop free.
    return await asyncio.to_thread(encode, registry), content_type


class SharedPages:
    """Writes one page at a time, which all callers share that asked before the page was begun.

    Use an instance in one event loop.
    """

    def __init__(self, write: Callable[[str], Awaitable[Page]]) -> None:
        """Write pages with a function that takes the header `accept`."""
        self._write = write
        self._writing = asyncio.Lock()
        self._begins_s = 0.0
        # The pages that are not begun yet, by content type.
        self._next: dict[str, asyncio.Task[Page]] = {}

    async def get(self, accept: str) -> Page:
        """Return a page that was begun after this call.

        Raises:
            Exception: the error of the function.
        """
        _, content_type = choose_encoder(accept)
        page = self._next.get(content_type)
        if page is None:
            page = self._next[content_type] = asyncio.create_task(self._write_next(content_type, accept))
        # A caller that leaves does not take the page from the others.
        return await asyncio.shield(page)

    async def _write_next(self, content_type: str, accept: str) -> Page:
        loop = asyncio.get_running_loop()
        async with self._writing:
            await asyncio.sleep(self._begins_s - loop.time())
            del self._next[content_type]
            begun_s = loop.time()
            page = await self._write(accept)
            self._begins_s = begun_s + (loop.time() - begun_s) / _WRITING_SHARE
            return page
