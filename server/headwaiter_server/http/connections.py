"""Bound the connections of the HTTP port, so that silent ones cannot keep others out."""

import asyncio
import logging
import ssl
from asyncio.sslproto import SSLProtocol
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from headwaiter_server.concurrency.stragglers import Stragglers
from headwaiter_server.log_lines import line_kind

log = logging.getLogger(__name__)

# A connection must have sent a complete request line and headers after this time, also between two requests. The TLS
# handshake may take as long.
_HEADERS_S = 15.0


class Connections:
    """The connections of one port.

    While there are too many, the one that has kept the server waiting for a complete request for the longest time is
    closed. A connection whose request is complete is not closed, unless it is the newest of too many.
    """

    def __init__(self, limit: int) -> None:
        """Allow at most `limit` connections; at least one."""
        self._limit = max(1, limit)
        self._open: set[_BoundedProtocol] = set()
        # The connections that have sent no complete request, the one that waits longest first.
        self._waiting: dict[_BoundedProtocol, None] = {}
        self._without_headers = Stragglers["_BoundedProtocol"](_HEADERS_S, _close)

    def opened(self, connection: "_BoundedProtocol") -> None:
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

    def closed(self, connection: "_BoundedProtocol") -> None:
        """Forget a connection."""
        self._open.discard(connection)
        self._waiting.pop(connection, None)
        self._without_headers.discard(connection)

    def awaits_headers(self, connection: "_BoundedProtocol") -> None:
        """Note that a connection has no request in progress."""
        self._waiting.setdefault(connection)
        self._without_headers.add(connection)

    def has_headers(self, connection: "_BoundedProtocol") -> None:
        """Note that the request line and the headers of a request are complete."""
        self._without_headers.discard(connection)

    def has_request(self, connection: "_BoundedProtocol") -> None:
        """Note that a request is complete."""
        self.has_headers(connection)
        self._waiting.pop(connection, None)


def bounded_protocol(connections: Connections, tls: ssl.SSLContext | None, **options: Any) -> asyncio.BaseProtocol:
    """Return the protocol of a new connection, with TLS or without."""
    http = _BoundedProtocol(connections, **options)
    return http if tls is None else _CountedHandshake(http, tls)


class _CountedHandshake(SSLProtocol):
    """The TLS of a connection, which counts from its first moment.

    If asyncio's server had the certificate, connections would count only after the handshake.
    """

    def __init__(self, http: "_BoundedProtocol", tls: ssl.SSLContext) -> None:
        loop, limit_s = asyncio.get_running_loop(), round(_HEADERS_S)
        nobody: Any = None  # waits for the end of the handshake
        super().__init__(loop, http, tls, nobody, server_side=True, ssl_handshake_timeout=limit_s)
        self._http = http

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection, and begin the handshake."""
        super().connection_made(transport)
        self._http.note_opened(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Count the connection no more, even if the handshake was not complete."""
        self._http.note_closed()
        super().connection_lost(exc)


class _BoundedProtocol(H11Protocol):
    """A connection that tells `Connections` what it waits for."""

    def __init__(self, connections: Connections, **options: Any) -> None:
        super().__init__(**options)
        self._bounds = connections
        self._counted: asyncio.BaseTransport | None = None

    def note_opened(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection, whose socket this transport has."""
        if self._counted is None:
            self._counted = transport
            self._bounds.opened(self)

    def note_closed(self) -> None:
        """Count the connection no more."""
        self._bounds.closed(self)

    def abort(self) -> None:
        """Close the connection without a word."""
        assert isinstance(self._counted, asyncio.Transport)
        self._counted.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to read requests."""
        super().connection_made(transport)
        self.note_opened(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Count the connection no more."""
        self.note_closed()
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


def _close(connection: _BoundedProtocol) -> None:
    connection.abort()
