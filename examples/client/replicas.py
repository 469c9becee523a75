"""Spread calls over several servers of the same model. Prints how many calls and how many models there were.

Run: python examples/client/replicas.py [host:port ...]
"""

import sys

from headwaiter_client import Client

addresses = sys.argv[1:] or ["localhost:50051", "localhost:50052"]

with Client(addresses) as client:
    client.wait_ready(timeout_s=60)
    # If a server stops during these calls, the client sends its calls to the other servers, and no call fails.
    digests = {client.encode([f"text {number}"]).model.digest for number in range(20)}

print(f"20 calls to {len(addresses)} addresses, answered by {len(digests)} model")
