"""Predict which attention kernel ONNX Runtime runs on a GPU, under the options of this server's sessions.

The rules are those of ONNX Runtime's operator PackedMultiHeadAttention, read from its sources.
`tests/server/runtime/test_attention_routes.py` names the source line of each rule. The route of a graph decides whether
a batch computes padding, and whether attention scores take memory.
"""

from enum import StrEnum
from typing import NamedTuple

# The provider option `sdpa_kernel`: the sum of AttentionBackend's bits for flash (1), memory-efficient (2) and unfused
# (16) attention. TensorRT's kernels are left out because they pad each sequence. If a session sets this option, the
# minimum length of each kernel is 0, so the route of a graph does not depend on the lengths of a batch.
SDPA_KERNEL = 1 + 2 + 16
# Turing: CUDA 13 supports no older GPU.
OLDEST_COMPUTE_CAPABILITY = (7, 5)
_FLASH_COMPUTE_CAPABILITY = (8, 0)
# Flash and memory-efficient attention accept only head sizes that are multiples of this number.
_HEAD_SIZE_STEP = 8
# The server rounds padded lengths up to multiples of this number: memory-efficient attention accepts a bias only if the
# padded length is a multiple of 8 in float16, and of 16 in float32.
PADDED_LENGTH_STEP = 16
_FLASH_MAX_HEAD_SIZE = 256
_MEMORY_EFFICIENT_MAX_HEAD_SIZE = 1024


class Route(StrEnum):
    """The kernel that computes attention."""

    FLASH = "flash"
    MEMORY_EFFICIENT = "memory-efficient"
    UNFUSED = "unfused"  # matrix products and a softmax over padded scores
    GATHERED = "gathered"  # no attention operator: standard operators on gathered cells

    @property
    def pads(self) -> bool:
        """Whether the route computes padding; only flash and memory-efficient attention do not."""
        return self not in (Route.FLASH, Route.MEMORY_EFFICIENT)


class PackedAttention(NamedTuple):
    """What a node PackedMultiHeadAttention computes.

    Attributes:
        half: whether the node computes in float16; otherwise in float32.
        head_dim: size of a query or a key in one head, padding included.
        value_dim: size of a value vector in one head, padding included.
        attention_bias: whether a bias is added to the scores.
    """

    half: bool
    head_dim: int
    value_dim: int
    attention_bias: bool = False


def served_route(attention: PackedAttention, compute_capability: tuple[int, int]) -> Route:
    """Return the kernel that computes attention; it is the same for every length that the server rounds up.

    Args:
        attention: what the graph's operator computes. Queries, keys and values may be one input or three.
        compute_capability: that of the GPU, at least OLDEST_COMPUTE_CAPABILITY.
    """
    sizes = attention.head_dim, attention.value_dim
    if any(size % _HEAD_SIZE_STEP or size > _MEMORY_EFFICIENT_MAX_HEAD_SIZE for size in sizes):
        return Route.UNFUSED
    if (
        attention.half
        and compute_capability >= _FLASH_COMPUTE_CAPABILITY
        and not attention.attention_bias
        and attention.head_dim == attention.value_dim <= _FLASH_MAX_HEAD_SIZE
    ):
        return Route.FLASH
    return Route.MEMORY_EFFICIENT


def is_always_fused(attention: PackedAttention) -> bool:
    """Return whether every GPU runs this attention without padding at every length, under this server's options."""
    return not served_route(attention, OLDEST_COMPUTE_CAPABILITY).pads


def padded_head_size(size: int) -> int:
    """Return the multiple of 8 to which CUDA graphs pad a head with zeros, for flash and memory-efficient attention."""
    return -(-size // _HEAD_SIZE_STEP) * _HEAD_SIZE_STEP


def padded_attention(*, half: bool, head_dim: int, value_dim: int, attention_bias: bool = False) -> PackedAttention:
    """Return what the attention nodes of a CUDA graph compute, given the head sizes of the model."""
    return PackedAttention(half, padded_head_size(head_dim), padded_head_size(value_dim), attention_bias)
