"""Listen for HTTP in a thread."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Sequence
from threading import Thread
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from headwaiter_server.http.connections import Connections, bounded_protocol

_NEVER_S = 86_400
# Connections that the kernel holds until they are accepted, and connections that are accepted at once. Accepted ones
# take descriptors before `Connections` can close any.
_QUEUED_CONNECTIONS = 128
_ACCEPTED_AT_ONCE = 16
# The largest request line and headers together.
_MAX_HEADER_BYTES = 16 << 10
# The server logs its start and its end itself.
logging.getLogger("uvicorn").setLevel(logging.WARNING)
# At the end of a drain, uvicorn reports the requests that it cuts off as its own failure, also if there are none.
logging.getLogger("uvicorn.error").addFilter(lambda record: not str(record.msg).startswith("Cancel "))


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on a port; port 0 takes a free port.

    Raises:
        OSError: the port is in use, or the host is not an address of this computer.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family)
    # Accepted connections inherit this option. Without it, the kernel holds a reply back until the caller has
    # acknowledged the headers, for up to 40 ms.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


class _ListeningSocket(socket.socket):
    """A socket with a long queue.

    asyncio gives `listen` the number of connections that it accepts at once.
    """

    def listen(self, backlog: int = _QUEUED_CONNECTIONS, /) -> None:
        """Listen with the long queue, whatever the number."""
        super().listen(_QUEUED_CONNECTIONS)


class HttpServer:
    """An HTTP server in a thread with an event loop of its own.

    Args:
        listening: a socket of `listen`.
        application: answers the requests.
        tls: see the attribute.
        max_connections: the most connections at a time.
        read_s: the longest time that a caller may take to read a reply, in seconds.
        trusted_proxies: the addresses and networks of proxies that name the caller in X-Forwarded-For.

    Attributes:
        port: the port that the server listens on.
        tls: the TLS of new connections; None for HTTP without TLS.
    """

    def __init__(
        self,
        listening: socket.socket,
        application: ASGIApp,
        tls: ssl.SSLContext | None,
        max_connections: int,
        read_s: float,
        trusted_proxies: Sequence[str] = (),
    ) -> None:
        self._socket = _ListeningSocket(fileno=listening.detach())
        self.port: int = self._socket.getsockname()[1]
        self.tls = tls
        connections = Connections(max_connections, read_s)
        protocol: Any = lambda **options: bounded_protocol(connections, self.tls, **options)  # noqa: E731
        config = uvicorn.Config(
            application,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            # By default, uvicorn trusts all callers of the same host.
            proxy_headers=bool(trusted_proxies),
            forwarded_allow_ips=list(trusted_proxies),
            # `Connections` closes connections without requests, those with half a request too.
            timeout_keep_alive=_NEVER_S,
            h11_max_incomplete_event_size=_MAX_HEADER_BYTES,
            http=protocol,
            backlog=_ACCEPTED_AT_ONCE,
            ws="none",
        )
        self._server = uvicorn.Server(config)
        self._thread = Thread(target=self._server.run, args=([self._socket],), name="http", daemon=True)

    def start(self) -> None:
        """Answer requests."""
        self._thread.start()

    async def stop(self, grace_s: float) -> None:
        """Stop listening and free the port; requests in progress have `grace_s` seconds to end."""
        self._server.config.timeout_graceful_shutdown = max(1, round(grace_s))
        self._server.should_exit = True
        await asyncio.to_thread(self._thread.join)
        self._socket.close()
