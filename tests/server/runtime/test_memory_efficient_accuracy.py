"""Memory-efficient attention in float32 stays within the tolerance of float32, by a simulation of its arithmetic.

From Ampere on, ONNX Runtime's kernel multiplies float32 on tensor cores in 3xTF32 (NVIDIA/cutlass:
OpMultiplyAddFastF32 in examples/41_fused_multi_head_attention/gemm_kernel_utils.h, computed in
include/cutlass/gemm/warp/mma_tensor_op_fast_f32.h). Each factor is the sum of two truncated TF32 numbers, and three of
the four products are added to the same sums. A tensor core adds eight products to a sum at a time. The simulation
aligns the nine addends, truncates each to 25 bits, and truncates the sum to float32. The 25 bits are an assumption:
NVIDIA does not document them.
"""

import numpy as np
import pytest
from numpy.typing import NDArray

Floats = NDArray[np.floating]
# Keys that the kernel reads at a time, and products that a tensor core adds at a time.
_KEYS, _PRODUCTS = 64, 8
_ALIGNED_BITS = 25
_LOG2_E = np.float32(1.4426950408889634)
# The largest difference of a pooled vector from PyTorch's, relative to the largest value.
_TOLERANCE = 1e-5


def _truncate(values: Floats, bits: int) -> Floats:
    """Round towards zero to this many significant bits."""
    mantissa, exponent = np.frexp(values)
    truncated: Floats = np.ldexp(np.trunc(np.ldexp(mantissa, bits)), exponent - bits)
    return truncated


def _split(values: Floats) -> tuple[Floats, Floats]:
    """Split float32 into two TF32 numbers of 11 bits; what both do not hold is lost."""
    exact = values.astype(np.float64)
    big = _truncate(exact, 11)
    return big, _truncate(exact - big, 11)


def _multiply_add(sums: Floats, left: Floats, right: Floats) -> Floats:
    """Return sums + left · right as a tensor core computes it: [m, n] + [m, 8] · [8, n]."""
    addends = np.concatenate([sums[..., None], left[:, None, :] * right.T[None]], axis=2)
    _, exponents = np.frexp(np.abs(addends).max(axis=2, keepdims=True))
    aligned = np.trunc(np.ldexp(addends, _ALIGNED_BITS - exponents))
    return _truncate(np.ldexp(aligned.sum(axis=2), exponents[..., 0] - _ALIGNED_BITS), 24)


def _multiply(left: Floats, right: Floats, sums: Floats) -> Floats:
    """Return sums + left · right in 3xTF32, as float32."""
    (left_big, left_small), (right_big, right_small) = _split(left), _split(right)
    sums = sums.astype(np.float64)
    for start in range(0, left.shape[1], _PRODUCTS):
        k = slice(start, start + _PRODUCTS)
        for a, b in ((left_small, right_big), (left_big, right_small), (left_big, right_big)):
            sums = _multiply_add(sums, a[:, k], b[k])
    return sums.astype(np.float32)


def memory_efficient(query: Floats, key: Floats, value: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the scores, the weights and the context of one head, computed block by block of keys."""
    scale = np.float32(1 / np.sqrt(query.shape[1]))
    largest = np.full((len(query), 1), -np.inf, np.float32)
    total, context = np.zeros_like(largest), np.zeros((len(query), value.shape[1]), np.float32)
    scores = []
    for start in range(0, len(key), _KEYS):
        keys = slice(start, start + _KEYS)
        block = _multiply(query, key[keys].T, np.zeros((len(query), len(key[keys])), np.float32)) * scale
        scores.append(block)
        block = block * _LOG2_E
        before, largest = largest, np.maximum(largest, block.max(axis=1, keepdims=True))
        exponentials, factor = np.exp2(block - largest), np.exp2(before - largest)
        total = total * factor + exponentials.sum(axis=1, keepdims=True)
        context = _multiply(exponentials, value[keys], context * factor)
    joined = np.concatenate(scores, axis=1)
    return joined, np.exp2(joined * _LOG2_E - largest) / total, context / total


def _exact(query: Floats, key: Floats, value: Floats) -> tuple[Floats, Floats, Floats]:
    q, k, v = (each.astype(np.float64) for each in (query, key, value))
    scores = q @ k.T / np.sqrt(q.shape[1])
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return scores, weights, weights @ v


def relative_errors(tokens: int, head_dim: int, sharpness: float, mean: float) -> list[float]:
    """Return the errors of scores, weights and context, each relative to the largest value.

    Args:
        tokens: keys of the sequence; at most 16 of its queries are computed.
        head_dim: values of a query, key and value.
        sharpness: standard deviation of the scores; of 8, one key takes most of the weight.
        mean: mean of the values, in standard deviations; with a large mean, rounding errors add up.
    """
    rng = np.random.default_rng(tokens + head_dim)
    key, value = (rng.standard_normal((tokens, head_dim)).astype(np.float32) for _ in range(2))
    query = sharpness * rng.standard_normal((min(tokens, 16), head_dim)).astype(np.float32)
    inputs = query.astype(np.float32), key, value + np.float32(mean)
    pairs = zip(memory_efficient(*inputs), _exact(*inputs), strict=True)
    return [float(np.abs(actual - expected).max() / np.abs(expected).max()) for actual, expected in pairs]


@pytest.mark.parametrize("head_dim", [8, 32, 64, 128])
@pytest.mark.parametrize("tokens", [1, 17, 255])
def test_below_256_tokens_the_error_of_float32_attention_is_within_the_tolerance(tokens: int, head_dim: int) -> None:
    for sharpness, mean in ((1.0, 0.0), (8.0, 0.0), (1.0, 1.0)):
        assert max(relative_errors(tokens, head_dim, sharpness, mean)) < _TOLERANCE, (sharpness, mean)


def test_the_error_of_longer_sequences_grows_only_if_their_values_have_a_mean() -> None:
    # ONNX Runtime takes this kernel for 256 tokens or more by default.
    assert max(relative_errors(1024, 64, 1.0, 0.0)) < _TOLERANCE
    assert _TOLERANCE < max(relative_errors(1024, 64, 1.0, 1.0)) < 1e-4


def test_the_simulation_sees_the_error_of_a_single_tf32_product() -> None:
    rng = np.random.default_rng(0)
    left, right = (rng.standard_normal(shape).astype(np.float32) for shape in ((16, 64), (64, 16)))
    exact = left.astype(np.float64) @ right
    single = _split(left)[0] @ _split(right)[0]
    threefold = _multiply(left, right, np.zeros((16, 16), np.float32))
    errors = [float(np.abs(each - exact).max() / np.abs(exact).max()) for each in (single, threefold)]
    assert errors[0] > 1e-4
    assert errors[1] < 1e-6
