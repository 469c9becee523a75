"""What becomes of a text that is too long: python examples/client/truncation.py [host:port]."""

import sys

from headwaiter_client import Client, SequenceTooLong

[address] = sys.argv[1:] or ["localhost:50051"]

with Client(address) as client:
    texts = ["short", "rain " * client.model().max_text_tokens]
    try:
        client.encode(texts)
    except SequenceTooLong as error:  # Nothing is cut unless you ask for it.
        print(f"text {error.sequence} has {error.actual} tokens, and the model takes {error.limit}")

    encoding = client.encode(texts, truncation="right")

for index, original_tokens in encoding.truncated.items():
    print(f"text {index} was cut from {original_tokens} tokens to {encoding.lengths[index]}")
