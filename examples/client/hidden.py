"""Get one vector per token. Prints, for each token, its part of the text and the start of its vector.

Run: python examples/client/hidden.py [host:port]
"""

import sys

from headwaiter_client import Client

[address] = sys.argv[1:] or ["localhost:50051"]
text = "the bread is fresh"

with Client(address) as client:
    encoding = client.encode([text], pooled=False, hidden=True, offsets=True)

for (begin, end), row in zip(encoding.offsets[0], encoding.hidden[0], strict=True):
    # A special token is no part of the text: its begin equals its end.
    print(f"{text[begin:end] or '(special)':<10} {row[:3].astype(float).round(3).tolist()} …")
