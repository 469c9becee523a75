"""Predict which attention kernel ONNX Runtime runs on a GPU.

The rules are those of ONNX Runtime's operator PackedMultiHeadAttention, read from its sources.
`tests/server/runtime/test_attention_routes.py` names the source line of each rule. The route of a graph decides whether
a batch computes padding, and whether attention scores take memory.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

# The provider option `sdpa_kernel`: the sum of AttentionBackend's bits for flash (1), memory-efficient (2) and unfused
# (16) attention. TensorRT's kernels are left out because they pad each sequence. If a session sets this option, the
# default minimum length of each kernel is 0, so the route of a graph does not depend on the lengths of a batch.
SDPA_KERNEL = 1 + 2 + 16
# Turing: CUDA 13 supports no older GPU.
OLDEST_COMPUTE_CAPABILITY = (7, 5)
# Flash and memory-efficient attention accept only head sizes that are multiples of this number.
_HEAD_SIZE_STEP = 8
# The server rounds padded lengths up to multiples of this number: memory-efficient attention accepts a bias only if the
# padded length is a multiple of 8 in float16, and of 16 in float32.
PADDED_LENGTH_STEP = 16
_FLASH_MAX_HEAD_SIZE = 256
_MEMORY_EFFICIENT_MAX_HEAD_SIZE = 1024
# ONNX Runtime contains TensorRT's kernels only for these GPUs and head sizes.
_FUSED_CAPABILITIES = ((7, 5), (8, 0), (8, 6), (8, 9))
_FUSED_HEAD_SIZES = (32, 64)
_FUSED_FLASH_HEAD_SIZES = (16, 32, 40, 64, 80, 128, 160, 256)
_FUSED_MAX_TOKENS = 384  # longer sequences need the kernel for long sequences


class Route(StrEnum):
    """The kernel that computes attention."""

    FLASH = "flash"
    MEMORY_EFFICIENT = "memory-efficient"
    FUSED = "fused"  # TensorRT's kernel, which pads each sequence to one of a few lengths
    FUSED_FLASH = "fused (flash)"  # TensorRT's kernel for long sequences
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
        one_input: whether queries, keys and values are one input, [T, H, 3, head_dim]; otherwise they are three inputs.
        attention_bias: whether a bias is added to the scores.
    """

    half: bool
    head_dim: int
    value_dim: int
    one_input: bool = False
    attention_bias: bool = False


class KernelOptions(NamedTuple):
    """Which kernels ONNX Runtime may use; the defaults are those of a session without options.

    Attributes:
        flash: flash attention.
        memory_efficient: memory-efficient attention.
        fused: TensorRT's kernels.
        fused_flash: TensorRT's kernels for long sequences.
        min_flash_tokens: smallest padded length for flash attention if queries, keys and values are one input.
        min_memory_efficient_tokens: smallest padded length for memory-efficient attention in float32.
    """

    flash: bool = True
    memory_efficient: bool = True
    fused: bool = True
    fused_flash: bool = True
    min_flash_tokens: int = 513
    min_memory_efficient_tokens: int = 256

    @classmethod
    def of(cls, sdpa_kernel: int, environment: Mapping[str, str]) -> "KernelOptions":
        """Return the options of a session, from its provider option `sdpa_kernel` (0: not set) and the environment."""

        def allowed(bit: int, disabling_variable: str) -> bool:
            if sdpa_kernel:
                return bool(sdpa_kernel & bit)
            return (environment.get(disabling_variable) or "0") in ("0", "false", "False")

        def min_tokens(variable: str, default: int) -> int:
            return int(environment.get(variable) or (0 if sdpa_kernel else default))

        return cls(
            allowed(1, "ORT_DISABLE_FLASH_ATTENTION"),
            allowed(2, "ORT_DISABLE_MEMORY_EFFICIENT_ATTENTION"),
            allowed(4, "ORT_DISABLE_FUSED_ATTENTION"),
            allowed(32, "ORT_DISABLE_TRT_FLASH_ATTENTION"),
            min_tokens("ORT_MIN_SEQ_LEN_FLASH_ATTENTION_PACKED_QKV", 513),
            min_tokens("ORT_MIN_SEQ_LEN_EFFICIENT_ATTENTION_FP32", 256),
        )


def attention_route(
    attention: PackedAttention | None, padded_length: int, compute_capability: tuple[int, int], options: KernelOptions
) -> Route:
    """Return the kernel that computes the attention of a batch.

    Args:
        attention: what the graph's operator computes; None if the graph has no attention operator.
        padded_length: N, the number of tokens of the longest sequence, rounded up to its shape bucket.
        compute_capability: that of the GPU, at least OLDEST_COMPUTE_CAPABILITY.
        options: the kernels that ONNX Runtime may use.
    """
    if attention is None:
        return Route.GATHERED
    equal_sizes = attention.head_dim == attention.value_dim
    long_enough = not attention.one_input or padded_length >= options.min_flash_tokens
    if (
        options.flash
        and attention.half
        and compute_capability >= (8, 0)
        and not attention.attention_bias
        and equal_sizes
        and attention.head_dim % _HEAD_SIZE_STEP == 0
        and attention.head_dim <= _FLASH_MAX_HEAD_SIZE
        and long_enough
    ):
        return Route.FLASH
    if options.fused and attention.half and not attention.attention_bias and equal_sizes:
        fused = _fused_route(attention.head_dim, padded_length, compute_capability, options)
        if fused is not None:
            return fused
    if options.memory_efficient and _takes_memory_efficient(attention, padded_length, options):
        return Route.MEMORY_EFFICIENT
    return Route.UNFUSED


def _fused_route(
    head_dim: int, padded_length: int, compute_capability: tuple[int, int], options: KernelOptions
) -> Route | None:
    """Return the TensorRT kernel that computes a batch; None if no TensorRT kernel accepts the batch."""
    if compute_capability not in _FUSED_CAPABILITIES:
        return None
    if padded_length <= _FUSED_MAX_TOKENS:
        return Route.FUSED if head_dim in _FUSED_HEAD_SIZES else None
    return Route.FUSED_FLASH if options.fused_flash and head_dim in _FUSED_FLASH_HEAD_SIZES else None


def _takes_memory_efficient(attention: PackedAttention, padded_length: int, options: KernelOptions) -> bool:
    """Return whether memory-efficient attention accepts a batch; all GPUs that CUDA 13 supports have this kernel."""
    sizes = attention.head_dim, attention.value_dim
    bias_step = PADDED_LENGTH_STEP // 2 if attention.half else PADDED_LENGTH_STEP
    return (
        all(size % _HEAD_SIZE_STEP == 0 and size <= _MEMORY_EFFICIENT_MAX_HEAD_SIZE for size in sizes)
        and (attention.half or padded_length >= options.min_memory_efficient_tokens)
        and (not attention.attention_bias or padded_length % bias_step == 0)
    )


def padded_head_size(size: int) -> int:
    """Return the multiple of 8 to which CUDA graphs pad a head with zeros, for flash and memory-efficient attention."""
    return -(-size // _HEAD_SIZE_STEP) * _HEAD_SIZE_STEP


def padded_attention(*, half: bool, head_dim: int, value_dim: int, attention_bias: bool = False) -> PackedAttention:
    """Return what the attention nodes of a CUDA graph compute, given the head sizes of the model.

    Some nodes have one input. Under this server's options, they have the same kernel as nodes with three.
    """
    sizes = padded_head_size(head_dim), padded_head_size(value_dim)
    return PackedAttention(half, *sizes, attention_bias=attention_bias)


def served_route(attention: PackedAttention, compute_capability: tuple[int, int]) -> Route:
    """Return the kernel that this server's options select; it is the same for every length."""
    return attention_route(attention, PADDED_LENGTH_STEP, compute_capability, KernelOptions.of(SDPA_KERNEL, {}))


def is_always_fused(attention: PackedAttention) -> bool:
    """Return whether every GPU runs this attention without padding at every length, under this server's options."""
    return not served_route(attention, OLDEST_COMPUTE_CAPABILITY).pads
