"""Encode feature vectors, such as image patches. Prints the number of rows for each sequence.

Run: python examples/client/features.py [host:port]
"""

import sys

import numpy as np

from headwaiter_client import Client

[address] = sys.argv[1:] or ["localhost:50051"]

with Client(address) as client:
    model = client.model()
    if not model.takes_features:
        raise SystemExit(f"{model.model.name} takes no features: serve a model that does, such as a vision encoder")
    random = np.random.default_rng(0)
    # The client sends float32, or float16 if all sequences are float16, which halves the bytes.
    sequences = [random.standard_normal((length, model.feature_width), np.float32) for length in (5, 20)]
    # Hidden rows are available from every model, with and without pooling.
    encoding = client.encode_features(sequences, pooled=False, hidden=True)

for rows in encoding.hidden:
    print(f"{len(rows)} rows of width {rows.shape[1]}")
