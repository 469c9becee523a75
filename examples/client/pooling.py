"""Other vectors of a text than the model's own choice: python examples/client/pooling.py [host:port]."""

import sys

import numpy as np

from headwaiter_client import Client, RequestOptions

[address] = sys.argv[1:] or ["localhost:50051"]
text = "the bread is fresh"
ways: dict[str, RequestOptions] = {
    "as the model does": {},
    "not of unit length": {"normalize": False},
    "the first token's": {"pooling": "cls"},
    "the largest of each dimension": {"pooling": "max", "normalize": False},
}

with Client(address) as client:  # `client.model().poolings` says which ones a model offers.
    vectors = {way: client.encode([text], **options).pooled for way, options in ways.items()}

for way, pooled in vectors.items():
    assert pooled is not None  # Models without pooling have hidden rows alone.
    print(f"{way}: {pooled[0, :3].astype(float).round(3).tolist()} …, length {np.linalg.norm(pooled[0]):.3f}")
