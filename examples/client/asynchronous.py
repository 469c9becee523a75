"""The client for asyncio: python examples/client/asynchronous.py [host:port]."""

import asyncio
import sys
from contextlib import aclosing

from headwaiter_client import AsyncClient


async def main(address: str) -> None:
    """Makes calls side by side, then reads from a stream until it has enough."""
    async with AsyncClient(address) as client:
        model, encoding = await asyncio.gather(client.model(), client.encode(["the bread is fresh"]))
        print(f"{encoding.lengths[0]} of at most {model.max_text_tokens} tokens")

        # Closing the stream, as leaving the block does, cancels what is on its way on the server too.
        async with aclosing(client.encode_stream(f"text {number}" for number in range(1000))) as results:
            async for one in results:
                if one.index == 3:
                    print("text 3 is enough")
                    break


[address] = sys.argv[1:] or ["localhost:50051"]
asyncio.run(main(address))
