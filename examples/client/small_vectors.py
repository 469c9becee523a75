"""Get smaller vectors: fewer dimensions, float16 or int8. Prints the size and a cosine for each form.

Run: python examples/client/small_vectors.py [host:port]
"""

import sys

from headwaiter_client import Client

[address] = sys.argv[1:] or ["localhost:50051"]
texts = ["the bread is fresh", "the table is for two"]

with Client(address) as client:
    full = client.encode(texts).pooled
    # For models trained to be cut (Matryoshka models). If the model's vectors have unit length, the short ones do too.
    short = client.encode(texts, dimensions=16).pooled
    half = client.encode(texts, dtype="float16").pooled
    small = client.encode(texts, dtype="int8").pooled_int8

for name, vectors, size_bytes in [
    ("float32", full, full.nbytes),
    ("16 dimensions", short, short.nbytes),
    ("float16", half.astype("float32"), half.nbytes),
    ("int8", small.to_float32(), small.values.nbytes + small.scales.nbytes),
]:
    print(f"{name}: {size_bytes} bytes, cosine {vectors[0] @ vectors[1]:.3f}")
