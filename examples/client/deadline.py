"""Set a timeout for a call. Prints the error of a call that takes too long, and the duration of a call that is in time.

Run: python examples/client/deadline.py [host:port]
"""

import sys

from headwaiter_client import Client, DeadlineExceeded, Overloaded

[address] = sys.argv[1:] or ["localhost:50051"]
texts = [f"text {number}" for number in range(1000)]

with Client(address, timeout_s=10) as client:  # The default for each request of calls without a timeout.
    try:
        client.encode(texts, timeout_s=0.001)  # For the whole list, including retries.
    except DeadlineExceeded as error:
        print(f"not within 1 ms: {error}")
    except Overloaded as error:  # The server predicted that it would miss the deadline, and refused the request.
        print(f"not within 1 ms: refused: {error}")

    encoding = client.encode(texts[:3])
    print(f"{len(encoding.lengths)} texts in {encoding.timings.round_trip_s * 1e3:.1f} ms")
