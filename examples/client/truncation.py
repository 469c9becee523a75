"""Truncate texts that are too long. Prints the error without truncation, and the token counts with truncation.

Run: python examples/client/truncation.py [host:port]
"""

import sys

from headwaiter_client import Client, SequenceTooLong

[address] = sys.argv[1:] or ["localhost:50051"]

with Client(address) as client:
    texts = ["short", "rain " * client.model().max_text_tokens]
    try:
        client.encode(texts)
    except SequenceTooLong as error:  # By default the server refuses texts that are too long.
        print(f"text {error.sequence} has {error.actual} tokens; the model accepts at most {error.limit}")

    encoding = client.encode(texts, truncation="right")

for index, original_tokens in encoding.truncated.items():
    print(f"text {index} was truncated from {original_tokens} to {encoding.lengths[index]} tokens")
