"""Awaitable calls with either client, for tests of both."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from headwaiter_client import AsyncClient, Client, Encoding

Encode = Callable[[list[list[int]]], Awaitable[Encoding]]


@asynccontextmanager
async def async_encode(
    client_class: type[Client] | type[AsyncClient], addresses: list[str], **options: Any
) -> AsyncIterator[Encode]:
    """Open a client of replicas, and yield an awaitable function that encodes token ids with this client."""
    if client_class is AsyncClient:
        async with AsyncClient(addresses, **options) as client:
            yield client.encode_tokens
    else:
        with Client(addresses, **options) as blocking:

            async def encode(sequences: list[list[int]]) -> Encoding:
                return await asyncio.to_thread(blocking.encode_tokens, sequences)

            yield encode
