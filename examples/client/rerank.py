"""Rank documents by their relevance to a query, with a server of a cross-encoder. Prints the documents, the best first.

Run: python examples/client/rerank.py [host:port]
"""

import sys

from headwaiter_client import Client

[address] = sys.argv[1:] or ["localhost:50051"]
documents = ["the rain falls on stone", "fresh bread", "a table for two, please"]

with Client(address) as client:
    ranking = client.rerank("where is the bread", documents, truncation="right", pair_truncation="only_second")
    for place, each in enumerate(ranking.documents, 1):
        print(f"{place}. {each.score:.3f} {each.document}")
