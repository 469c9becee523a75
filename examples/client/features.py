"""Vectors in place of tokens, such as patches of an image: python examples/client/features.py [host:port]."""

import sys

import numpy as np

from headwaiter_client import Client

[address] = sys.argv[1:] or ["localhost:50051"]

with Client(address) as client:
    width = client.model().feature_width
    random = np.random.default_rng(0)
    # float32 unless all are float16, which halves what is sent.
    sequences = [random.standard_normal((length, width), np.float32) for length in (5, 20)]
    # A model without pooling has rows only.
    encoding = client.encode_features(sequences, pooled=False, hidden=True)

assert encoding.hidden is not None
for rows in encoding.hidden:
    print(f"{len(rows)} rows of width {rows.shape[1]}")
