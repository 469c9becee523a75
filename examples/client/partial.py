"""Answers for the good sequences although others are bad: python examples/client/partial.py [host:port]."""

import sys

from headwaiter_client import Client

[address] = sys.argv[1:] or ["localhost:50051"]
texts = ["the bread is fresh", "", "rain falls on stone"]

with Client(address) as client:
    encoding = client.encode(texts, partial=True)

assert encoding.pooled is not None  # A row for each text: of zeros for one that failed.
for index, text in enumerate(texts):
    failure = encoding.failures.get(index)
    print(f"{text!r}: {failure or encoding.pooled[index, :3].astype(float).round(3).tolist()}")
