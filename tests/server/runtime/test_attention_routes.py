"""The predicted kernel of attention follows the rules in ONNX Runtime's sources, case by case.

Lines are those of commit 89b01b406ca7e94078913eea3189e11bef5654c5 of microsoft/onnxruntime, in these files:

- pmha: onnxruntime/contrib_ops/cuda/bert/packed_multihead_attention.cc
- flash: onnxruntime/contrib_ops/cuda/bert/flash_attention/flash_api.cc
- efficient: onnxruntime/contrib_ops/cuda/bert/cutlass_fmha/memory_efficient_attention.h
- options: onnxruntime/contrib_ops/cuda/bert/attention_kernel_options.cc
"""

import pytest

from headwaiter_server.runtime.attention_routes import (
    OLDEST_COMPUTE_CAPABILITY,
    PackedAttention,
    Route,
    is_always_fused,
    padded_head_size,
    served_route,
)

TURING, A100, A10, ADA, HOPPER, BLACKWELL = (7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (12, 0)
FLASH, EFFICIENT, UNFUSED = Route.FLASH, Route.MEMORY_EFFICIENT, Route.UNFUSED

# For each case: the source line, the operator (half, head_dim, value_dim, attention bias) and the compute capability.
CASES = [
    # Flash attention: fp16, equal head sizes, no bias, Ampere or newer.
    ("pmha:46", (True, 64, 64), A100, FLASH),
    ("pmha:46", (False, 64, 64), A100, EFFICIENT),
    ("pmha:208", (True, 64, 32), A100, EFFICIENT),
    ("pmha:208", (True, 32, 64), HOPPER, EFFICIENT),
    ("pmha:207", (True, 64, 64, True), A100, EFFICIENT),
    ("flash:436", (True, 64, 64), TURING, EFFICIENT),
    ("flash:436", (True, 64, 64), A10, FLASH),
    ("flash:436", (True, 64, 64), ADA, FLASH),
    ("flash:436", (True, 64, 64), HOPPER, FLASH),
    ("flash:436", (True, 64, 64), BLACKWELL, FLASH),
    ("flash:436", (True, 8, 8), A100, FLASH),
    ("flash:436", (True, 24, 24), A100, FLASH),
    ("flash:436", (True, 20, 20), A100, UNFUSED),
    ("flash:436", (True, 256, 256), A100, FLASH),
    ("flash:436", (True, 264, 264), A100, EFFICIENT),
    # Memory-efficient attention: any precision, head sizes of a multiple of 8.
    ("efficient:71", (False, 64, 60), A100, UNFUSED),
    ("efficient:72", (False, 20, 24), A100, UNFUSED),
    ("efficient:73", (False, 1024, 1024), A100, EFFICIENT),
    ("efficient:73", (False, 1032, 1024), A100, UNFUSED),
    ("efficient:73", (True, 64, 1032), A100, UNFUSED),
    ("efficient:70", (False, 64, 64), TURING, EFFICIENT),
    ("options:65", (False, 64, 64), A100, EFFICIENT),
    ("pmha:232", (False, 64, 64, True), A100, EFFICIENT),
    # The options of the server leave TensorRT's kernels out.
    ("options:26", (True, 64, 64), TURING, EFFICIENT),
]


@pytest.mark.parametrize(("line", "operator", "capability", "route"), CASES)
def test_the_route_of_attention_is_that_of_onnx_runtime(
    line: str, operator: tuple[bool, int, int], capability: tuple[int, int], route: Route
) -> None:
    assert served_route(PackedAttention(*operator), capability) == route, line


@pytest.mark.parametrize(
    ("head_dim", "value_dim", "fused"),
    [(64, 64, True), (32, 1024, True), (8, 8, True), (20, 24, False), (64, 20, False), (1032, 64, False)],
)
def test_head_sizes_of_a_multiple_of_8_up_to_1024_are_fused_on_every_gpu(
    head_dim: int, value_dim: int, fused: bool
) -> None:
    assert OLDEST_COMPUTE_CAPABILITY == TURING
    assert [is_always_fused(PackedAttention(half, head_dim, value_dim)) for half in (True, False)] == [fused, fused]


def test_heads_are_padded_to_the_next_multiple_of_8() -> None:
    assert [padded_head_size(size) for size in (1, 8, 9, 26, 64)] == [8, 8, 16, 32, 64]
