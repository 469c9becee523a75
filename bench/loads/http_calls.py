"""Sends prepared HTTP requests over kept connections and never parses replies, as raw_calls does for gRPC."""

import asyncio
import json
from collections.abc import Sequence
from urllib.parse import urlsplit

from bench.loads.raw_calls import RawRequest
from bench.loads.traces import Ids, in_groups
from headwaiter_client.cli import load_generator
from headwaiter_client.cli.load_generator import Load, Reply

EMBEDDINGS = "/v1/embeddings"


class Connection:
    """A connection to an HTTP server, for one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, url: str) -> "Connection":
        """Connect to the host and the port of a URL."""
        parts = urlsplit(url)
        return cls(*await asyncio.open_connection(parts.hostname, parts.port))

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()

    @property
    def closed(self) -> bool:
        """Whether the server has closed the connection."""
        return self._reader.at_eof()

    def write(self, data: bytes) -> None:
        """Send bytes."""
        self._writer.write(data)

    async def call(self, message: bytes) -> int:
        """Send a request, read the whole reply, and return its status."""
        status, _ = await self.exchange(message)
        return status

    async def exchange(self, message: bytes) -> tuple[int, bytes]:
        """Send a request, and return the status and the body of the reply."""
        self._writer.write(message)
        await self._writer.drain()
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        _, _, length = head.partition(b"content-length:")
        body = await self._reader.readexactly(int(length.split()[0]))
        return int(head.split()[1]), body


def post(body: bytes, path: str = EMBEDDINGS) -> bytes:
    """Return a request that posts JSON to a path, by default to the API for embeddings."""
    head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def closed_loop(url: str, sequences: Sequence[Ids], requesters: int, sequences_per_request: int = 1) -> Load:
    """Send sequences; each requester has a connection, and waits for its answer before it sends the next request."""
    requests = [_request(group) for group in in_groups(sequences, sequences_per_request)]

    async def run() -> Load:
        free = [await Connection.open(url) for _ in range(requesters)]

        async def send(request: RawRequest, due_s: float) -> Reply:
            connection = free.pop()
            status = await connection.call(request.message)
            free.append(connection)
            return Reply(request.tokens, None if status == 200 else RuntimeError(f"status {status}"))

        load = await load_generator.closed_loop(send, requests, requesters)
        for connection in free:
            connection.close()
        return load

    return asyncio.run(run())


def _request(sequences: Sequence[Ids]) -> RawRequest:
    body = json.dumps({"input": [ids.tolist() for ids in sequences]}).encode()
    return RawRequest(post(body), sum(map(len, sequences)))
