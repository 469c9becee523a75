"""Several servers of one model, which take turns: python examples/client/replicas.py [host:port ...]."""

import sys

from headwaiter_client import Client

addresses = sys.argv[1:] or ["localhost:50051", "localhost:50052"]

with Client(addresses) as client:
    client.wait_ready(timeout_s=60)
    # Stop one of them meanwhile: no call fails, as long as another one serves.
    digests = {client.encode([f"text {number}"]).model.digest for number in range(20)}

print(f"20 calls over {len(addresses)} addresses, answered by {len(digests)} model")
