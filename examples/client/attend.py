"""Show attention weights: prints, for each head of layer 0, the token to which one token attends most.

Run: python examples/client/attend.py [host:port]
"""

import sys

from headwaiter_client import Client

[address] = sys.argv[1:] or ["localhost:50051"]
query = 1  # The first word; position 0 is a special token.

with Client(address) as client:
    attention = client.attend("the bread is fresh", layers=[0], query=query)

for head, weights in enumerate(attention.weights[0]):
    most_attended = attention.tokens[weights[query].argmax()]
    context = attention.context[0, head, :3].astype(float).round(3).tolist()
    print(f"head {head}: {attention.tokens[query]} attends most to {most_attended}; its context vector is {context} …")
