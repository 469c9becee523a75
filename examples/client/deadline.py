"""A call that may take so long and no longer: python examples/client/deadline.py [host:port]."""

import sys

from headwaiter_client import Client, DeadlineExceeded, Overloaded

[address] = sys.argv[1:] or ["localhost:50051"]
texts = [f"text {number}" for number in range(1000)]

with Client(address, timeout_s=10) as client:  # For each request of calls that name no time of their own.
    try:
        client.encode(texts, timeout_s=0.001)  # For the whole list, retries included.
    except DeadlineExceeded as error:
        print(f"not within 1 ms: {error}")
    except Overloaded as error:  # The server saw that it could not be in time, and did not begin.
        print(f"not within 1 ms: refused: {error}")

    encoding = client.encode(texts[:3])
    print(f"{len(encoding.lengths)} texts within {encoding.timings.round_trip_s * 1e3:.1f} ms")
