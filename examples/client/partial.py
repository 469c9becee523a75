"""Get the results of the valid texts even if another text is invalid. Prints a vector or an error for each text.

Run: python examples/client/partial.py [host:port]
"""

import sys

from headwaiter_client import Client

[address] = sys.argv[1:] or ["localhost:50051"]
texts = ["the bread is fresh", "too long " * 150, "rain falls on stone"]

with Client(address) as client:
    encoding = client.encode(texts, partial=True)

for index, text in enumerate(texts):
    if index in encoding.failures:
        print(f"{text[:20]!r} failed: {encoding.failures[index]}")
    else:
        print(f"{text!r}: {encoding.pooled[index, :3].astype(float).round(3).tolist()} …")
