"""Predict the memory that the longest sequence of a model needs on the CPU."""

from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_server.runtime.packing import BLOCK_CELLS

_FLOAT_BYTES = 4
# Measured with layers whose feed-forward width is four times the width of a row, as in most encoders: the rows that a
# layer holds at once, in multiples of the hidden rows, and the copies of the attention scores. Scores and weights are
# two copies; with blocks, ONNX Runtime's arena also keeps a gap of about the same size.
_LIVE_ROWS = 16
_SCORE_COPIES_IN_BLOCKS = 3
_SCORE_COPIES = 2


def longest_sequence_bytes(manifest: Manifest, *, attends_in_blocks: bool) -> int:
    """Return about how many bytes a batch of one longest sequence needs beside the weights.

    Args:
        manifest: the manifest of the model.
        attends_in_blocks: whether the graph computes the scores of one query block at a time.
    """
    tokens = manifest.max_tokens
    scores = _SCORE_COPIES * tokens**2
    if attends_in_blocks:
        scores = _SCORE_COPIES_IN_BLOCKS * min(tokens**2, max(BLOCK_CELLS, tokens))
    return _FLOAT_BYTES * (_LIVE_ROWS * manifest.width * tokens + manifest.heads * scores)
