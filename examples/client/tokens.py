"""Send token ids from your own tokenizer. Prints the length and the start of the vector for each sequence.

Run: python examples/client/tokens.py [host:port]
"""

import sys

import numpy as np

from headwaiter_client import Client

[address] = sys.argv[1:] or ["localhost:50051"]

with Client(address) as client:
    model = client.model()
    # Sequences are arrays or lists of ids of the model's vocabulary. They include the special tokens.
    random = np.random.default_rng(0)
    sequences = [random.integers(model.vocabulary_size, size=length) for length in (3, 12, 7)]
    encoding = client.encode_tokens(sequences)

for length, vector in zip(encoding.lengths, encoding.pooled, strict=True):
    print(f"{length} tokens: {vector[:3].astype(float).round(3).tolist()} …")
