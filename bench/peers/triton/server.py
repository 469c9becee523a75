"""Triton with its dynamic batcher, through PyTriton: https://triton-inference-server.github.io/pytriton/.

Triton joins only requests of one shape, so two models show both ways to serve sequences of different lengths:

- `token_ids` takes token ids; a batch has sequences of one length.
- `texts` takes texts, whose shape is always [1], and pads a batch to its longest text.
"""

import os
import signal
import sys
from pathlib import Path

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig
from tokenizers import Tokenizer

from bench.peers.model import BUNDLE, MAX_BATCH, PORT, PortableModel

model = PortableModel()
tokenizer = Tokenizer.from_file(str(Path(os.environ[BUNDLE]) / "tokenizer.json"))
tokenizer.no_truncation()
tokenizer.no_padding()


@batch
def encode_token_ids(ids):
    return {"vector": model.run(ids, np.ones_like(ids))}


@batch
def encode_texts(texts):
    encodings = tokenizer.encode_batch([text.decode() for text in texts[:, 0]])
    return {"vector": model.encode([encoding.ids for encoding in encodings])}


if __name__ == "__main__":
    port, max_batch = int(os.environ[PORT]), int(os.environ[MAX_BATCH])
    # Triton's recommended process starts with the batcher's default settings: no delay, no preferred size.
    config = ModelConfig(max_batch_size=max_batch, batcher=DynamicBatcher())
    outputs = [Tensor(name="vector", dtype=np.float32, shape=(-1,))]
    addresses = TritonConfig(
        grpc_address="127.0.0.1", grpc_port=port, http_address="127.0.0.1", http_port=port + 1, metrics_port=port + 2
    )
    # Without this, SIGTERM leaves Triton's temporary files behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    with Triton(config=addresses) as triton:
        ids = Tensor(name="ids", dtype=np.int64, shape=(-1,))
        texts = Tensor(name="texts", dtype=bytes, shape=(1,))
        triton.bind("token_ids", encode_token_ids, inputs=[ids], outputs=outputs, config=config)
        triton.bind("texts", encode_texts, inputs=[texts], outputs=outputs, config=config)
        triton.serve()
