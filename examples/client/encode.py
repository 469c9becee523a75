"""Texts in, one vector each out, however long the list: python examples/client/encode.py [host:port]."""

import sys

from headwaiter_client import Client

[address] = sys.argv[1:] or ["localhost:50051"]
texts = [f"{what} falls on {where}" for what in ("rain", "snow", "light") for where in ("stone", "grass", "roofs")]

with Client(address, timeout_s=10) as client:
    client.wait_ready(timeout_s=60)
    # It goes in as many requests as the server's limits make it, and comes back in its order.
    encoding = client.encode(texts, progress=lambda done, total: print(f"{done} of {total} texts"))

assert encoding.pooled is not None  # Models without pooling have hidden rows alone.
cosines = encoding.pooled @ encoding.pooled[0]
nearest = cosines[1:].argmax() + 1
print(f"nearest to {texts[0]!r}: {texts[nearest]!r}, cosine {cosines[nearest]:.3f}")
print(f"{encoding.lengths.sum()} tokens; {encoding.timings.compute_s * 1e3:.1f} ms of the model's time")
print(f"by {encoding.model.name} {encoding.model.digest[:12]}")
