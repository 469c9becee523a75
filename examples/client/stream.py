"""Encode more texts than fit in memory. Prints token counts in the order of the texts, then counts unordered results.

Run: python examples/client/stream.py [host:port]
"""

import sys
from collections.abc import Iterator

from headwaiter_client import Client

[address] = sys.argv[1:] or ["localhost:50051"]


def lines() -> Iterator[str]:
    """Yield the lines of a large file."""
    for number in range(60):
        yield f"line {number} of a large file"


with Client(address) as client:
    for result in client.encode_stream(lines()):
        if result.index % 20 == 0:
            print(f"text {result.index} has {result.length} tokens")

    # Unordered results arrive earlier. Each result has the index of its text.
    results = client.encode_stream(lines(), ordered=False, priority="bulk")
    print(f"{len({result.index for result in results})} texts in the order of arrival")
