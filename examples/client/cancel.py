"""A call that nobody waits for any more: python examples/client/cancel.py [host:port]."""

import asyncio
import sys

from headwaiter_client import AsyncClient


async def main(address: str) -> None:
    """Cancels a long list once its first part is done."""
    texts = [f"text {number}" for number in range(5000)]
    async with AsyncClient(address, max_in_flight=2) as client:

        def first_part(done: int, total: int) -> None:
            print(f"{done} of {total} texts are enough")
            call.cancel()  # asyncio.timeout and a TaskGroup cancel in the same way.

        call = asyncio.create_task(client.encode(texts, progress=first_part))
        try:
            await call
        except asyncio.CancelledError:
            print("cancelled: what waits on the server never runs, and nothing more is sent")


[address] = sys.argv[1:] or ["localhost:50051"]
asyncio.run(main(address))
