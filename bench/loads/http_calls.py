"""Sends prepared HTTP requests over connections that stay open, and never parses the replies."""

import asyncio
from urllib.parse import urlsplit


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

    async def call(self, message: bytes) -> tuple[int, bytes]:
        """Send a request, and return the status and the body of the reply."""
        self._writer.write(message)
        await self._writer.drain()
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        _, _, length = head.partition(b"content-length:")
        body = await self._reader.readexactly(int(length.split()[0]))
        return int(head.split()[1]), body


def post(body: bytes, path: str = "/v1/embeddings") -> bytes:
    """Return a request that posts JSON to a path, by default to the API for embeddings."""
    head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
