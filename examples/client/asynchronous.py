"""Make concurrent calls with the asyncio client, and end a stream early. Prints a token count and the last text read.

Run: python examples/client/asynchronous.py [host:port]
"""

import asyncio
import sys
from contextlib import aclosing

from headwaiter_client import AsyncClient


async def main(address: str) -> None:
    """Make two calls at the same time, then read a stream until the fourth result."""
    async with AsyncClient(address) as client:
        model, encoding = await asyncio.gather(client.model(), client.encode(["the bread is fresh"]))
        print(f"{encoding.lengths[0]} of at most {model.max_text_tokens} tokens")

        # The end of the block closes the stream, which also cancels its requests on the server.
        async with aclosing(client.encode_stream(f"text {number}" for number in range(1000))) as results:
            async for result in results:
                if result.index == 3:
                    print("stopped the stream after text 3")
                    break


[address] = sys.argv[1:] or ["localhost:50051"]
asyncio.run(main(address))
