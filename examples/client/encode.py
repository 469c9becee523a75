"""Encode a list of texts of any length. Prints progress, the nearest text to the first one, and where time was spent.

Run: python examples/client/encode.py [host:port]
"""

import sys

from headwaiter_client import Client

[address] = sys.argv[1:] or ["localhost:50051"]
texts = [f"{thing} falls on {place}" for thing in ("rain", "snow", "light") for place in ("stone", "grass", "roofs")]

with Client(address, timeout_s=10) as client:
    client.wait_ready(timeout_s=60)
    # The client splits the list into requests within the server's limits, and returns the results in the list's order.
    encoding = client.encode(texts, progress=lambda done, total: print(f"{done} of {total} texts"))

cosines = encoding.pooled @ encoding.pooled[0]
nearest = cosines[1:].argmax() + 1
print(f"nearest to {texts[0]!r}: {texts[nearest]!r}, cosine {cosines[nearest]:.3f}")
print(f"{encoding.lengths.sum()} tokens in {encoding.timings.compute_s * 1e3:.1f} ms of compute time")
print(f"model {encoding.model.name} {encoding.model.digest[:12]}")
