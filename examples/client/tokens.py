"""Token ids from a tokenizer of your own: python examples/client/tokens.py [host:port]."""

import sys

import numpy as np

from headwaiter_client import Client

[address] = sys.argv[1:] or ["localhost:50051"]

with Client(address) as client:
    model = client.model()
    # Ids of the model's vocabulary, special tokens included, any number of each; lists of int do as well as arrays.
    random = np.random.default_rng(0)
    sequences = [random.integers(model.vocabulary_size, size=length) for length in (3, 12, 7)]
    encoding = client.encode_tokens(sequences)

assert encoding.pooled is not None
for length, vector in zip(encoding.lengths, encoding.pooled, strict=True):
    print(f"{length} tokens: {vector[:3].astype(float).round(3).tolist()} …")
