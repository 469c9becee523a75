"""Choose another pooling than the model's own. Prints the vector of one text for each choice.

Run: python examples/client/pooling.py [host:port]
"""

import sys

import numpy as np

from headwaiter_client import Client, RequestOptions

[address] = sys.argv[1:] or ["localhost:50051"]
text = "the bread is fresh"
choices: dict[str, RequestOptions] = {
    "the model's own pooling": {},
    "without scaling to unit length": {"normalize": False},
    "the first token's row": {"pooling": "cls"},
    "the largest value of each dimension": {"pooling": "max", "normalize": False},
}

with Client(address) as client:  # `client.model().poolings` lists the poolings that the model offers.
    vectors = {choice: client.encode([text], **options).pooled for choice, options in choices.items()}

for choice, pooled in vectors.items():
    print(f"{choice}: {pooled[0, :3].astype(float).round(3).tolist()} …, length {np.linalg.norm(pooled[0]):.3f}")
