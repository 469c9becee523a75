"""Callers that take much, and leave or do not read, neither keep others waiting nor keep memory."""

import asyncio
import json
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from headwaiter_client import AsyncClient, Overloaded
from headwaiter_server.app import Server
from headwaiter_server.engine import local
from headwaiter_server.metrics import page
from headwaiter_server.processes import front_end_links
from tests.support.e2e.in_process_server import connect, one_front_end, serving

# The reply to this request takes more than the kernel keeps for a connection.
_EMBED_ALL = json.dumps({"inputs": ["bread " * 25] * 800}).encode()
_REPLY_BYTES = 7_000_000


async def _open(server: Server) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection to HTTP for which the kernel keeps little."""
    small = socket.socket()
    small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    small.setblocking(False)
    await asyncio.get_running_loop().sock_connect(small, ("127.0.0.1", server.http_port))
    return await asyncio.open_connection(sock=small, limit=1)


async def _wait_until(answered: bool, client: AsyncClient) -> None:
    """Wait until the server answers a call, or refuses the call."""
    async with asyncio.timeout(20):
        for _ in range(1000):
            try:
                await client.encode(["bread " * 25] * 20, hidden=True)
            except Overloaded:
                if not answered:
                    return
            else:
                if answered:
                    return
            await asyncio.sleep(0.02)


async def _received_bytes(reader: asyncio.StreamReader) -> int:
    """Return how many bytes arrive before the connection ends."""
    received = 0
    with suppress(ConnectionResetError):
        while part := await reader.read(1 << 20):
            received += len(part)
    return received


@pytest.mark.parametrize("connection", ["keep-alive", "close"])
async def test_an_unread_http_reply_counts_until_its_caller_is_cut_off(text_bundle: Path, connection: str) -> None:
    limits: dict[str, Any] = {"max_reply_bytes": 8_400_000, "http_timeout_s": 4.0, "front_ends": one_front_end()}
    async with serving(text_bundle, http_api="on", **limits) as server, connect(server) as client:
        await _wait_until(True, client)
        reader, writer = await _open(server)
        head = f"POST /embed_all HTTP/1.1\r\nHost: x\r\nConnection: {connection}\r\nContent-Length: {len(_EMBED_ALL)}"
        writer.write(f"{head}\r\n\r\n".encode() + _EMBED_ALL)
        # A call of the client could take the bytes that the reply needs.
        await asyncio.sleep(1.0)
        await _wait_until(False, client)
        await _wait_until(True, client)
        assert await _received_bytes(reader) < _REPLY_BYTES
        writer.close()


async def test_much_work_of_one_connection_delays_the_work_of_another_by_little(text_bundle: Path) -> None:
    async with (
        serving(text_bundle, max_queue_tokens=1 << 30) as server,
        connect(server) as greedy,
        connect(server) as modest,
    ):
        await modest.encode(["bread", "rain"])
        many = [asyncio.create_task(greedy.encode(["bread " * 25] * 2000)) for _ in range(40)]
        await asyncio.sleep(0.05)
        await modest.encode(["bread", "rain"], timeout_s=30)
        unanswered = sum(not each.done() for each in many)
        for each in many:
            each.cancel()
        await asyncio.gather(*many, return_exceptions=True)
    assert unanswered > 10


@pytest.mark.parametrize("front_ends", [0, 2])
async def test_scrapers_that_leave_cost_few_pages(text_bundle: Path, front_ends: int) -> None:
    written = 0
    write = page.write_page

    async def count(*arguments: object) -> page.Page:
        nonlocal written
        written += 1
        return await write(*arguments)  # type: ignore[arg-type]

    where = front_end_links if front_ends else local
    with patch.object(where, "write_page", count):
        async with serving(text_bundle, front_ends=front_ends) as server, connect(server) as client:
            for _ in range(300):
                _, writer = await asyncio.open_connection("127.0.0.1", server.metrics_port)
                writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
                await writer.drain()
                writer.close()
            await client.encode(["bread"])
            await asyncio.sleep(0.5)
    assert 1 <= written < 60
