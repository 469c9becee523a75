"""More texts than memory holds, in order and as they come: python examples/client/stream.py [host:port]."""

import sys
from collections.abc import Iterator

from headwaiter_client import Client

[address] = sys.argv[1:] or ["localhost:50051"]


def lines() -> Iterator[str]:
    """Stands for a large file."""
    for number in range(60):
        yield f"line {number} of a large file"


with Client(address) as client:
    for one in client.encode_stream(lines()):
        if one.index % 20 == 0:
            print(f"text {one.index} has {one.length} tokens")

    # Whoever needs no order need not wait for it; each result knows its index.
    results = client.encode_stream(lines(), ordered=False, priority="bulk")
    print(f"{len({one.index for one in results})} texts, as they came")
