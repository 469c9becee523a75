"""Count the tokens of texts, cut the texts that are too long, and encode the parts. Prints the counts.

Run: python examples/client/count_tokens.py [host:port]
"""

import sys

from headwaiter_client import Client

[address] = sys.argv[1:] or ["localhost:50051"]

with Client(address) as client:
    texts = ["fresh bread", "rain " * client.model().max_text_tokens]
    tokens = client.tokenize(texts, offsets=True)
    for index, (text, offsets) in enumerate(zip(texts, tokens.offsets, strict=True)):
        print(f"text {index} has {len(offsets)} tokens; the model encodes at most {tokens.max_tokens}")
        inside = offsets[1:-1]  # Without the special tokens of this model.
        size = tokens.max_tokens - 8  # A part has special tokens of its own, and can begin inside a word.
        parts = [inside[start : start + size] for start in range(0, len(inside), size)]
        encoding = client.encode([text[part[0, 0] : part[-1, 1]] for part in parts])
        print(f"{len(parts)} vectors, of {encoding.lengths.tolist()} tokens")
