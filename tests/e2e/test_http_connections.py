"""Connections to HTTP are cut off at their time limits, with TLS as without."""

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any
from unittest.mock import patch

import pytest
import trustme
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from headwaiter_server.http import connections
from headwaiter_server.http.paced_response import PacedResponse
from headwaiter_server.http.server import HttpServer, listen

_HEADERS_S, _READ_S, _IDLE_S = 1.0, 1.5, 4.0
_LARGE_BYTES = 200_000
_GET = b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(scope="module")
def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the TLS of a server and of a client."""
    authority, server, client = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(server)
    authority.configure_trust(client)
    return server, client


@contextmanager
def _serving(tls: ssl.SSLContext | None, ended: list[str], most: int = 100) -> Iterator[int]:
    """Serve a page, and yield the port; `ended` gets the path of each request that was answered."""

    async def large(_: Request) -> Response:
        return PacedResponse(bytes(_LARGE_BYTES))

    async def slow(_: Request) -> Response:
        await asyncio.sleep(2 * _READ_S)
        ended.append("/slow")
        return PlainTextResponse("answered")

    async def refuse(_: Request) -> Response:
        return PlainTextResponse("refused", 401)

    routes = [Route("/large", large), Route("/slow", slow), Route("/refuse", refuse, methods=["POST"])]
    with patch.multiple(connections, _HEADERS_S=_HEADERS_S, _IDLE_S=_IDLE_S):
        listening = listen("127.0.0.1", 0)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        server = HttpServer(listening, Starlette(routes=routes), tls, most, read_s=_READ_S)
        server.start()
        try:
            yield server.port
        finally:
            asyncio.run(server.stop(0.1))


def _connected(port: int, tls: ssl.SSLContext | None) -> socket.socket:
    """Return a connection for which the kernel keeps little."""
    small = socket.socket()
    small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    small.settimeout(2 * _IDLE_S)
    small.connect(("127.0.0.1", port))
    return small if tls is None else tls.wrap_socket(small, server_hostname="127.0.0.1")


@asynccontextmanager
async def _opened(port: int, tls: ssl.SSLContext | None) -> AsyncIterator[tuple[asyncio.StreamReader, Any]]:
    host = "127.0.0.1"
    reader, writer = await asyncio.open_connection(
        host, port, ssl=tls, server_hostname=host if tls else None, limit=1 << 20
    )
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def _closed_after_s(reader: asyncio.StreamReader) -> float:
    """Return the seconds until the server closes a connection."""
    started_s = time.monotonic()
    async with asyncio.timeout(10):
        with suppress(ConnectionError, ssl.SSLError):
            while await reader.read(1 << 16):
                pass
    return time.monotonic() - started_s


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_connection_without_complete_headers_is_closed_after_their_time_and_an_idle_one_later(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], encrypted: bool
) -> None:
    server_tls, client_tls = contexts if encrypted else (None, None)

    async def run(port: int) -> list[float]:
        async with (
            _opened(port, client_tls) as (silent, _),
            _opened(port, client_tls) as (begun, begun_writer),
            _opened(port, client_tls) as (idle, writer),
        ):
            begun_writer.write(b"POST /refuse HTTP")
            writer.write(b"POST /refuse HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n")
            await idle.readuntil(b"refused")
            writer.write(b"rest")
            return await asyncio.gather(*(_closed_after_s(each) for each in (silent, begun, idle)))

    with _serving(server_tls, []) as port:
        silent_s, begun_s, idle_s = asyncio.run(run(port))
    assert max(silent_s, begun_s) < _IDLE_S / 2 < 0.9 * _IDLE_S < idle_s


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_reply_that_is_not_read_in_time_is_cut_off_and_one_that_is_read_arrives_whole(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], encrypted: bool
) -> None:
    server_tls, client_tls = contexts if encrypted else (None, None)

    def received_bytes(port: int, pause_s: float, connection: bytes) -> int:
        with _connected(port, client_tls) as caller:
            caller.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\nConnection: %s\r\n\r\n" % connection)
            time.sleep(pause_s)
            received = 0
            with suppress(OSError):
                while part := caller.recv(1 << 16):
                    received += len(part)
            return received

    def all_received(port: int) -> list[int]:
        kinds = [(pause_s, kind) for pause_s in (0.0, 2 * _READ_S) for kind in (b"close", b"keep-alive")]
        with ThreadPoolExecutor(len(kinds)) as threads:
            return list(threads.map(lambda kind: received_bytes(port, *kind), kinds))

    with _serving(server_tls, []) as port:
        *whole, late_close, late_keep_alive = all_received(port)
    assert min(whole) > _LARGE_BYTES
    assert max(late_close, late_keep_alive) < _LARGE_BYTES


def test_a_request_that_follows_a_page_has_all_its_time() -> None:
    ended: list[str] = []

    async def run(port: int) -> bytes:
        async with _opened(port, None) as (reader, writer):
            writer.transport.pause_reading()
            writer.write(_GET % b"/large" + _GET % b"/slow")
            await asyncio.sleep(_READ_S / 2)
            writer.transport.resume_reading()
            async with asyncio.timeout(10):
                await reader.readuntil(b"answered")
                return b"answered"

    with _serving(None, ended) as port:
        assert asyncio.run(run(port)) == b"answered"
    assert ended == ["/slow"]


def test_a_connection_that_begins_to_send_is_kept_longer_than_older_silent_ones() -> None:
    async def run(port: int) -> bool:
        async with _opened(port, None) as (reader, writer):
            writer.write(_GET % b"/refuse")
            await reader.readuntil(b"\r\n\r\n")
            async with _opened(port, None), _opened(port, None):
                await asyncio.sleep(0.2)
                writer.write(b"POST /refuse HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n")
                await asyncio.sleep(0.1)
                async with _opened(port, None):  # One too many.
                    await asyncio.sleep(0.1)
                    writer.write(b"\r\nbody")
                    return b"refused" in await asyncio.wait_for(reader.readuntil(b"refused"), 5)

    with _serving(None, [], most=3) as port:
        assert asyncio.run(run(port))
