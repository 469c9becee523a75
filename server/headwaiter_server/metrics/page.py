"""Write the page of metrics."""

import asyncio
import itertools
import re
import time
from collections.abc import Awaitable, Callable, Collection
from typing import NamedTuple

from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

# The part of the time in which a process writes pages, however many callers ask for pages.
_WRITING_SHARE = 0.1
_NAME_END = re.compile(b"[{ ]")
# The media types, versions and escapings that scrapers ask for. A page for any other version would be a page for one
# caller alone.
_ASKED_FOR = itertools.product(
    ("text/plain", "application/openmetrics-text"),
    ("1.0.0", "0.0.4"),
    ("allow-utf-8", "underscores", "dots", "values"),
)
_CONTENT_TYPES = {choose_encoder("")[1], choose_encoder("application/openmetrics-text")[1]}.union(
    choose_encoder(f"{media_type};version={version};escaping={escaping}")[1]
    for media_type, version, escaping in _ASKED_FOR
)


class Page(NamedTuple):
    """A page of metrics.

    Attributes:
        content: the text.
        content_type: the media type of the text.
        writing_s: seconds of processor time that this process took to write the page.
    """

    content: bytes
    content_type: str
    writing_s: float


async def write_page(registry: Collector, accept: str) -> Page:
    """Return the page of a registry; `accept` is a header of the scrape."""
    encode, content_type = choose_encoder(accept)

    def write() -> Page:
        started_s = time.thread_time()
        return Page(encode(registry), content_type, time.thread_time() - started_s)

    # Writing all series takes milliseconds; a thread keeps the event loop free.
    return await asyncio.to_thread(write)


def samples_of(content: bytes, names: Collection[str]) -> bytes:
    """Return the lines of a page that are samples with these names.

    The page is written as a whole for all callers that share it: registries are not asked for single metrics.
    """
    wanted = {name.encode() for name in names}
    # OpenMetrics has a line at the end.
    lines = [
        line for line in content.splitlines(keepends=True) if line == b"# EOF\n" or _NAME_END.split(line)[0] in wanted
    ]
    return b"".join(lines)


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
        accept, content_type = _negotiated(accept)
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
            page = await self._write(accept)
            self._begins_s = loop.time() + page.writing_s * (1 / _WRITING_SHARE - 1)
            return page


def _negotiated(accept: str) -> tuple[str, str]:
    """Return a header `accept` that asks for one of few types, and the content type of its page."""
    try:
        _, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # The version is not a number.
        content_type = ""
    if content_type in _CONTENT_TYPES:
        return accept, content_type
    return "", choose_encoder("")[1]
