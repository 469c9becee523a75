"""Bound the connections of the HTTP port, so that silent ones cannot keep others out."""

import asyncio
import logging
import ssl
from asyncio.sslproto import SSLProtocol
from enum import Enum, auto
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from headwaiter_server.concurrency.stragglers import Stragglers
from headwaiter_server.log_lines import line_kind

log = logging.getLogger(__name__)

# A caller must complete the request line and the headers in this time, and the TLS handshake.
_HEADERS_S = 15.0
# A connection without a request is kept for this time. Proxies reuse connections that were idle for up to 60 s, and a
# request that meets a closed connection is lost.
_IDLE_S = 80.0


class Awaited(Enum):
    """What the server waits for on a connection."""

    HEADERS = auto()
    BODY = auto()
    NEXT_REQUEST = auto()
    READER = auto()


class Connections:
    """The connections of one port.

    A caller that keeps the server waiting for too long is cut off. The body of a request has a time limit of its own;
    see `Bodies`.

    While there are too many connections, the one that has kept the server waiting for the longest time is closed. A
    connection whose request the server is answering is not closed, unless it is the newest of too many.
    """

    def __init__(self, limit: int, read_s: float) -> None:
        """Allow at most `limit` connections, at least one; a caller must read each reply within `read_s`."""
        self._limit = max(1, limit)
        self._open: set[_BoundedProtocol] = set()
        # The connections that keep the server waiting, the one that does so for the longest time first.
        self._waiting: dict[_BoundedProtocol, Awaited] = {}
        limits_s = {Awaited.HEADERS: _HEADERS_S, Awaited.NEXT_REQUEST: _IDLE_S, Awaited.READER: read_s}
        self._late = {awaited: Stragglers(limit_s, _close) for awaited, limit_s in limits_s.items()}

    def opened(self, connection: "_BoundedProtocol") -> None:
        """Add a connection, and close one if there are too many."""
        self._open.add(connection)
        self.awaits(connection, Awaited.HEADERS)
        if len(self._open) > self._limit:
            log.warning(
                "more than %d HTTP connections: those that keep the server waiting are closed",
                self._limit,
                extra=line_kind("HTTP connections", lines_per_s=1),
            )
            oldest = next(iter(self._waiting))
            self.closed(oldest)
            _close(oldest)

    def closed(self, connection: "_BoundedProtocol") -> None:
        """Forget a connection."""
        self._open.discard(connection)
        self.works_for(connection)

    def awaits(self, connection: "_BoundedProtocol", awaited: Awaited) -> None:
        """Note what a connection keeps the server waiting for."""
        before = self._waiting.get(connection)
        if before is awaited or connection not in self._open:
            return
        self._stop_timer(connection)
        if before is Awaited.NEXT_REQUEST:
            # Idle connections without a new request are closed first.
            del self._waiting[connection]
        self._waiting[connection] = awaited
        if awaited in self._late:
            self._late[awaited].add(connection)

    def works_for(self, connection: "_BoundedProtocol") -> None:
        """Note that a connection waits for the server."""
        self._stop_timer(connection)
        self._waiting.pop(connection, None)

    def _stop_timer(self, connection: "_BoundedProtocol") -> None:
        if (awaited := self._waiting.get(connection)) in self._late:
            self._late[awaited].discard(connection)


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
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(high=0)
        super().connection_made(transport)
        self._http.note_opened(transport)

    def _get_write_buffer_size(self) -> int:
        """Return what is not sent yet, also what asyncio has given to the transport of the socket."""
        transport: Any = self._transport
        unsent_bytes: int = super()._get_write_buffer_size()  # type: ignore[misc]
        return unsent_bytes + (0 if transport is None else transport.get_write_buffer_size())

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
        # A connection that is not paused has then left nothing to send. At 0, asyncio's TLS would pause with an empty
        # buffer.
        transport.set_write_buffer_limits(high=1, low=0)
        self.note_opened(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Count the connection no more."""
        self.note_closed()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Handle what the caller has sent."""
        if self._is_idle and not self.flow.write_paused:
            self._bounds.awaits(self, Awaited.HEADERS)
        super().data_received(data)

    def handle_events(self) -> None:
        """Handle what the caller has sent, and note how complete the request is."""
        super().handle_events()
        if not self.flow.write_paused:
            self._note_request()

    def pause_writing(self) -> None:
        """Note that the caller does not read."""
        super().pause_writing()
        self._bounds.awaits(self, Awaited.READER)

    def resume_writing(self) -> None:
        """Go on writing. The time for reading a reply goes on until the caller has read the whole reply."""
        super().resume_writing()
        if not self._had_request:
            self._bounds.awaits(self, Awaited.HEADERS)  # What was sent belongs to the TLS handshake.
        elif self._is_idle:
            self._bounds.awaits(self, Awaited.NEXT_REQUEST)
        elif not self.cycle.response_started:
            self._note_request()

    def on_response_complete(self) -> None:
        """Wait for the next request, or until the caller has read the reply."""
        if not self.flow.write_paused:
            self._bounds.awaits(self, Awaited.NEXT_REQUEST)
        super().on_response_complete()

    def _unsupported_upgrade_warning(self) -> None:
        """Say nothing: the request is answered over HTTP/1.1, as RFC 9110, section 7.8, allows."""

    def _note_request(self) -> None:
        """Note how complete the request is that was sent last."""
        if self._is_idle:
            between_requests = self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]
            if self._had_request and between_requests:
                self._bounds.awaits(self, Awaited.NEXT_REQUEST)
        elif self.cycle.more_body:
            self._bounds.awaits(self, Awaited.BODY)
        else:
            self._bounds.works_for(self)

    @property
    def _is_idle(self) -> bool:
        """Whether there is no request, or the whole reply to the last one was given to the transport."""
        return not self._had_request or self.cycle.response_complete

    @property
    def _had_request(self) -> bool:
        cycle: Any = self.cycle
        return cycle is not None


def _close(connection: _BoundedProtocol) -> None:
    connection.abort()
