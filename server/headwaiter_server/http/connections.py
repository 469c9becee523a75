"""Bound the connections of the HTTP port, so that silent ones cannot keep others out."""

import asyncio
import logging
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from headwaiter_server.concurrency.stragglers import Stragglers
from headwaiter_server.log_lines import line_kind

log = logging.getLogger(__name__)

# A connection must have sent a complete request line and headers after this time, also between two requests.
_HEADERS_S = 15.0


class Connections:
    """The connections of one port.

    While there are too many, the one that has kept the server waiting for a complete request for the longest time is
    closed. A connection whose request is complete is not closed, unless it is the newest of too many.
    """

    def __init__(self, limit: int) -> None:
        """Allow at most `limit` connections; at least one."""
        self._limit = max(1, limit)
        self._open: set[H11Protocol] = set()
        # The connections that have sent no complete request, the one that waits longest first.
        self._waiting: dict[H11Protocol, None] = {}
        self._without_headers = Stragglers[H11Protocol](_HEADERS_S, _close)

    def opened(self, connection: H11Protocol) -> None:
        """Add a connection, and close one if there are too many."""
        self._open.add(connection)
        self.awaits_headers(connection)
        if len(self._open) > self._limit:
            log.warning(
                "more than %d HTTP connections: those that send no complete request are closed",
                self._limit,
                extra=line_kind("HTTP connections", lines_per_s=1),
            )
            oldest = next(iter(self._waiting))
            self.closed(oldest)
            _close(oldest)

    def closed(self, connection: H11Protocol) -> None:
        """Forget a connection."""
        self._open.discard(connection)
        self._waiting.pop(connection, None)
        self._without_headers.discard(connection)

    def awaits_headers(self, connection: H11Protocol) -> None:
        """Note that a connection has no request in progress."""
        self._waiting.setdefault(connection)
        self._without_headers.add(connection)

    def has_headers(self, connection: H11Protocol) -> None:
        """Note that the request line and the headers of a request are complete."""
        self._without_headers.discard(connection)

    def has_request(self, connection: H11Protocol) -> None:
        """Note that a request is complete."""
        self.has_headers(connection)
        self._waiting.pop(connection, None)


class BoundedProtocol(H11Protocol):
    """A connection that tells `Connections` what it waits for."""

    def __init__(self, connections: Connections, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._bounds = connections

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection."""
        super().connection_made(transport)
        self._bounds.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Count the connection no more."""
        self._bounds.closed(self)
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Handle what the caller has sent, and note how complete the request is."""
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete:
            if self.cycle.more_body:
                self._bounds.has_headers(self)
            else:
                self._bounds.has_request(self)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        if not self.transport.is_closing():
            self._bounds.awaits_headers(self)


def _close(connection: H11Protocol) -> None:
    connection.transport.abort()
