"""Cancel a call that is no longer needed. Prints how far the call came before it was cancelled.

Run: python examples/client/cancel.py [host:port]
"""

import asyncio
import sys

from headwaiter_client import AsyncClient


async def main(address: str) -> None:
    """Cancel a long list after the first request is answered."""
    texts = [f"text {number}" for number in range(5000)]
    async with AsyncClient(address, max_in_flight=2) as client:

        def cancel_call(done: int, total: int) -> None:
            print(f"cancel after {done} of {total} texts")
            call.cancel()  # asyncio.timeout and asyncio.TaskGroup cancel a call in the same way.

        call = asyncio.create_task(client.encode(texts, progress=cancel_call))
        try:
            await call
        except asyncio.CancelledError:
            print("cancelled: the server drops the waiting requests, and the client sends no more requests")


[address] = sys.argv[1:] or ["localhost:50051"]
asyncio.run(main(address))
