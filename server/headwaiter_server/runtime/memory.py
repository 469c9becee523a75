"""Predict the memory that a model needs on the CPU, and read how much memory is available."""

import ctypes
from contextlib import suppress
from pathlib import Path

from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules.outputs import hidden_width
from headwaiter_server.runtime.packing import BLOCK_CELLS

# The number of token ids whose logits the graphs of sparse vectors compute at once, for all rows of a batch.
LOGITS_AT_ONCE = 2048
_FLOAT_BYTES = 4
_MEMORY_INFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
# Measured on layers whose feed-forward width is four times the row width, as in most encoders. A layer holds 16 times
# the hidden rows at once: 8 times, and two arrays of the feed-forward width. A gated block holds a third array of its
# width. A layer also holds two arrays of the size of the attention scores: the scores and the weights. With query
# blocks, ONNX Runtime's arena keeps a gap of about the same size, which counts as a third array. Products with
# vectors of distances have twice the size of the scores, and are copied.
_LIVE_ROWS = 16
_LIVE_ROWS_BESIDE_GATED_BLOCK = 8
_GATED_ARRAYS = 3
_SCORE_COPIES_IN_BLOCKS = 3
_SCORE_COPIES = 2
_DISTANCE_PRODUCT_COPIES = 5
# Padded graphs hold at once about four times the largest array for each token, and six times the largest array for each
# pair of tokens: PyTorch's tracer writes attention with operators that replace NaN after the softmax.
_PADDED_ROW_COPIES, _PADDED_SCORE_COPIES = 4, 6


def longest_sequence_bytes(manifest: Manifest, *, attends_in_blocks: bool) -> int:
    """Return the approximate number of bytes that one longest sequence needs in addition to the weights.

    Args:
        manifest: the manifest of the model.
        attends_in_blocks: whether the graph computes the scores of one query block at a time.
    """
    tokens = manifest.max_tokens
    if manifest.HasField("padding"):
        scores = _PADDED_SCORE_COPIES * manifest.padding.cell_values * tokens**2
        return rows_bytes(manifest, tokens) + _FLOAT_BYTES * scores
    copies, cells = _SCORE_COPIES, tokens**2
    if attends_in_blocks:
        copies, cells = _SCORE_COPIES_IN_BLOCKS, min(tokens**2, max(BLOCK_CELLS, tokens))
    if manifest.distance_products:
        copies += _DISTANCE_PRODUCT_COPIES
    return rows_bytes(manifest, tokens) + _FLOAT_BYTES * manifest.heads * copies * cells


def rows_bytes(manifest: Manifest, tokens: int) -> int:
    """Return the approximate number of bytes that the rows of a batch need, without attention scores."""
    if manifest.HasField("padding"):
        return _FLOAT_BYTES * _PADDED_ROW_COPIES * manifest.padding.token_values * tokens
    width = _row_width(manifest)
    live = _LIVE_ROWS * width
    if manifest.gated_width:
        live = _LIVE_ROWS_BESIDE_GATED_BLOCK * width + _GATED_ARRAYS * manifest.gated_width
    return _FLOAT_BYTES * (live + manifest.convolution_values) * tokens


def cell_values(manifest: Manifest) -> int:
    """Return the largest number of values of an array of a graph for each attention cell, at least 1."""
    return max(1, manifest.padding.cell_values if manifest.HasField("padding") else manifest.heads)


def padded_width(manifest: Manifest) -> int:
    """Return the largest width of an array [B, N, width] that the graphs compute outside attention."""
    if manifest.HasField("padding"):
        return manifest.padding.token_values
    width = max(_row_width(manifest), hidden_width(manifest))
    if manifest.first_row_layers:
        width = max(width, manifest.heads * max(manifest.head_dim, manifest.value_dim))
    return max(width, LOGITS_AT_ONCE) if manifest.sparse else width


def _row_width(manifest: Manifest) -> int:
    """Return the number of values of a row of the layers."""
    return manifest.row_width or hidden_width(manifest)


def give_back_free_memory() -> None:
    """Make glibc return freed memory to the operating system; do nothing with another C library."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def available_bytes(memory_info: Path = _MEMORY_INFO, cgroup: Path = _CGROUP) -> int | None:
    """Return how many more bytes this process may allocate; None if the operating system does not report it.

    Args:
        memory_info: the file /proc/meminfo.
        cgroup: the folder of the process's cgroup, version 2. The cgroup's limit counts if it has one.
    """
    try:
        fields = dict(line.split(":", 1) for line in memory_info.read_text().splitlines())
        available = 1024 * int(fields["MemAvailable"].split()[0])
    except (OSError, ValueError, KeyError):
        return None
    try:
        most, used = (int((cgroup / name).read_text()) for name in ("memory.max", "memory.current"))
        statistics = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        # The kernel gives up cached files before it refuses memory.
        cached = int(statistics["inactive_file"]) + int(statistics["active_file"])
        return min(available, max(0, most - used + cached))
    except (OSError, ValueError, KeyError):  # There is no cgroup, or its limit is "max".
        return available
