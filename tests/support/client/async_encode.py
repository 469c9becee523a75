"""Awaitable calls with either client, for tests of both."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from headwaiter_client import AsyncClient, Client, Encoding

Encode = Callable[[list[list[int]]], Awaitable[Encoding]]


@asynccontextmanager
async def async_encode(
    client_class: type[Client] | type[AsyncClient], address: str | list[str], **options: Any
) -> AsyncIterator[Encode]:
    """Open a client, and yield an awaitable function that encodes token ids with this client."""
    if client_class is AsyncClient:
        async with AsyncClient(address, **options) as client:
            yield client.encode_tokens
    else:
        with Client(address, **options) as blocking:

            async def encode(sequences: list[list[int]]) -> Encoding:
                return await asyncio.to_thread(blocking.encode_tokens, sequences)

            yield encode
