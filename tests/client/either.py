"""One way to call either client, for tests that are about what both do."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from headwaiter_client import AsyncClient, Client, Encoding

Encode = Callable[[list[list[int]]], Awaitable[Encoding]]


@asynccontextmanager
async def encode_with(kind: type[Client] | type[AsyncClient], addresses: list[str]) -> AsyncIterator[Encode]:
    """Opens a client, and gives what encodes token ids with it."""
    if kind is AsyncClient:
        async with AsyncClient(addresses) as client:
            yield client.encode_tokens
    else:
        with Client(addresses) as blocking:

            async def encode(sequences: list[list[int]]) -> Encoding:
                return await asyncio.to_thread(blocking.encode_tokens, sequences)

            yield encode
