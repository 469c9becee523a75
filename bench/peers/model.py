"""The model of the peers that bring none: the portable graph of the bundle, in an ONNX Runtime session.

The programs of the peers import this module in their own environments, so it imports only NumPy and ONNX Runtime.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

# The bench starts each peer with these variables.
BUNDLE, PORT, MAX_BATCH = "PEER_BUNDLE", "PEER_PORT", "PEER_MAX_BATCH"


class PortableModel:
    """all-MiniLM-L6-v2 on one thread; a batch is padded to its longest sequence."""

    def __init__(self) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        path = Path(os.environ[BUNDLE]) / "portable.fp32.onnx"
        self._session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def encode(self, sequences: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """Return the vectors of sequences of token ids, at unit length."""
        ids = np.zeros((len(sequences), max(map(len, sequences))), np.int64)
        mask = np.zeros_like(ids)
        for row, sequence in enumerate(sequences):
            ids[row, : len(sequence)] = sequence
            mask[row, : len(sequence)] = 1
        return self.run(ids, mask)

    def run(self, ids: NDArray[np.int64], mask: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the vectors of padded sequences, at unit length; `mask` is 1 for tokens and 0 for padding."""
        pooled: Any = self._session.run(["pooled"], {"input_ids": ids, "attention_mask": mask})[0]
        vectors: NDArray[np.float32] = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
        return vectors
