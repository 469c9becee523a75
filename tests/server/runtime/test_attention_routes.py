"""The predicted kernel of attention follows the rules in ONNX Runtime's sources, case by case.

Lines are those of commit 89b01b406ca7e94078913eea3189e11bef5654c5 of microsoft/onnxruntime, in these files:

- pmha: onnxruntime/contrib_ops/cuda/bert/packed_multihead_attention.cc
- impl: onnxruntime/contrib_ops/cuda/bert/packed_multihead_attention_impl.cu
- packed: onnxruntime/contrib_ops/cuda/bert/packed_attention.cc
- flash: onnxruntime/contrib_ops/cuda/bert/flash_attention/flash_api.cc
- efficient: onnxruntime/contrib_ops/cuda/bert/cutlass_fmha/memory_efficient_attention.h
- runner: onnxruntime/contrib_ops/cuda/bert/tensorrt_fused_multihead_attention/mha_runner.cu
- trt_flash: onnxruntime/contrib_ops/cuda/bert/tensorrt_fused_multihead_attention/flash_attention/fmha_flash_attention.h
- options: onnxruntime/contrib_ops/cuda/bert/attention_kernel_options.cc
- common: onnxruntime/contrib_ops/cpu/bert/attention_common.h
- softmax: onnxruntime/contrib_ops/cuda/bert/attention_softmax.cu
"""

import pytest

from headwaiter_server.runtime.attention_routes import (
    OLDEST_COMPUTE_CAPABILITY,
    SDPA_KERNEL,
    KernelOptions,
    PackedAttention,
    Route,
    attention_route,
    is_always_fused,
    padded_head_size,
)

TURING, A100, A10, ADA, HOPPER, BLACKWELL = (7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (12, 0)
FLASH, EFFICIENT, FUSED = Route.FLASH, Route.MEMORY_EFFICIENT, Route.FUSED
FUSED_FLASH, UNFUSED, GATHERED = Route.FUSED_FLASH, Route.UNFUSED, Route.GATHERED
Session = tuple[int, dict[str, str]]
SERVED: Session = (SDPA_KERNEL, {})
DEFAULT: Session = (0, {})

# For each case: the source line, the operator (half, head_dim, value_dim, one input, attention bias), N, the compute
# capability, and the provider option sdpa_kernel with the environment.
CASES = [
    # Flash attention: fp16, equal head sizes, no bias, Ampere or newer.
    ("pmha:46", (True, 64, 64), 128, A100, SERVED, FLASH),
    ("pmha:46", (False, 64, 64), 512, A100, SERVED, EFFICIENT),
    ("pmha:208", (True, 64, 32), 128, A100, SERVED, EFFICIENT),
    ("pmha:208", (True, 32, 64), 128, HOPPER, SERVED, EFFICIENT),
    ("pmha:207", (True, 64, 64, False, True), 128, A100, SERVED, EFFICIENT),
    ("flash:436", (True, 64, 64), 128, TURING, SERVED, EFFICIENT),
    ("flash:436", (True, 64, 64), 128, A10, SERVED, FLASH),
    ("flash:436", (True, 64, 64), 128, ADA, SERVED, FLASH),
    ("flash:436", (True, 64, 64), 128, HOPPER, SERVED, FLASH),
    ("flash:436", (True, 64, 64), 128, BLACKWELL, SERVED, FLASH),
    ("flash:436", (True, 8, 8), 1, A100, SERVED, FLASH),
    ("flash:436", (True, 24, 24), 128, A100, SERVED, FLASH),
    ("flash:436", (True, 20, 20), 128, A100, SERVED, UNFUSED),
    ("flash:436", (True, 256, 256), 128, A100, SERVED, FLASH),
    ("flash:436", (True, 264, 264), 128, A100, SERVED, EFFICIENT),
    # One input of queries, keys and values takes flash attention only from some length on.
    ("pmha:215", (True, 64, 64, True), 512, HOPPER, DEFAULT, EFFICIENT),
    ("common:242", (True, 64, 64, True), 513, HOPPER, DEFAULT, FLASH),
    ("options:61", (True, 64, 64, True), 8, HOPPER, SERVED, FLASH),
    ("options:59", (True, 64, 64, True), 512, HOPPER, (0, {"ORT_MIN_SEQ_LEN_FLASH_ATTENTION_PACKED_QKV": "0"}), FLASH),
    ("pmha:215", (True, 64, 64, False), 8, HOPPER, DEFAULT, FLASH),
    # Memory-efficient attention: any precision, head sizes of a multiple of 8.
    ("efficient:71", (False, 64, 60), 512, A100, SERVED, UNFUSED),
    ("efficient:72", (False, 20, 24), 512, A100, SERVED, UNFUSED),
    ("efficient:73", (False, 1024, 1024), 512, A100, SERVED, EFFICIENT),
    ("efficient:73", (False, 1032, 1024), 512, A100, SERVED, UNFUSED),
    ("efficient:73", (True, 64, 1032), 512, A100, SERVED, UNFUSED),
    ("efficient:70", (False, 64, 64), 1, TURING, SERVED, EFFICIENT),
    ("common:236", (False, 64, 64), 255, A100, DEFAULT, UNFUSED),
    ("common:236", (False, 64, 64), 256, A100, DEFAULT, EFFICIENT),
    ("options:65", (False, 64, 64), 1, A100, SERVED, EFFICIENT),
    ("options:63", (False, 64, 64), 1, A100, (0, {"ORT_MIN_SEQ_LEN_EFFICIENT_ATTENTION_FP32": "0"}), EFFICIENT),
    ("options:63", (False, 64, 64), 99, A100, (19, {"ORT_MIN_SEQ_LEN_EFFICIENT_ATTENTION_FP32": "100"}), UNFUSED),
    ("pmha:233", (True, 64, 32), 1, A100, DEFAULT, EFFICIENT),
    ("pmha:232", (True, 64, 64, False, True), 12, A100, SERVED, UNFUSED),
    ("pmha:232", (False, 64, 64, False, True), 16, A100, SERVED, EFFICIENT),
    ("pmha:232", (False, 64, 64, False, True), 24, A100, SERVED, UNFUSED),
    # TensorRT's kernels: fp16, equal head sizes, no bias, a few GPUs, head sizes and lengths.
    ("runner:228", (True, 64, 64), 384, TURING, DEFAULT, FUSED),
    ("runner:218", (True, 32, 32), 32, TURING, DEFAULT, FUSED),
    ("runner:218", (True, 128, 128), 32, TURING, DEFAULT, EFFICIENT),
    ("runner:210", (True, 64, 64), 385, TURING, DEFAULT, FUSED_FLASH),
    ("trt_flash:354", (True, 40, 40), 385, TURING, DEFAULT, FUSED_FLASH),
    ("trt_flash:354", (True, 48, 48), 385, TURING, DEFAULT, EFFICIENT),
    ("runner:214", (True, 64, 64, True), 128, A100, DEFAULT, FUSED),
    ("runner:214", (True, 64, 64, True), 128, A10, DEFAULT, FUSED),
    ("runner:210", (True, 64, 64, True), 400, ADA, DEFAULT, FUSED_FLASH),
    ("runner:214", (True, 64, 64, True), 128, BLACKWELL, DEFAULT, EFFICIENT),
    ("packed:52", (True, 64, 32), 128, TURING, DEFAULT, EFFICIENT),
    ("packed:51", (True, 64, 64, False, True), 128, TURING, DEFAULT, EFFICIENT),
    ("packed:40", (False, 64, 64), 300, TURING, DEFAULT, EFFICIENT),
    ("pmha:222", (True, 64, 64), 128, A100, DEFAULT, FLASH),
    # The options that leave kernels out.
    ("options:26", (True, 64, 64), 128, TURING, SERVED, EFFICIENT),
    ("options:26", (True, 64, 64), 128, TURING, (23, {}), FUSED),
    ("options:30", (True, 64, 64), 400, TURING, (23, {}), EFFICIENT),
    ("options:30", (True, 64, 64), 400, TURING, (55, {}), FUSED_FLASH),
    ("options:25", (False, 64, 64), 400, A100, (17, {}), UNFUSED),
    ("options:21", (True, 64, 64), 400, A100, (18, {}), EFFICIENT),
    ("options:35", (True, 64, 64), 400, HOPPER, (0, {"ORT_DISABLE_FLASH_ATTENTION": "1"}), EFFICIENT),
    ("options:35", (True, 64, 64), 400, HOPPER, (19, {"ORT_DISABLE_FLASH_ATTENTION": "1"}), FLASH),
    ("options:39", (False, 64, 64), 400, A100, (0, {"ORT_DISABLE_MEMORY_EFFICIENT_ATTENTION": "1"}), UNFUSED),
    ("options:40", (True, 64, 64), 128, TURING, (0, {"ORT_DISABLE_FUSED_ATTENTION": "1"}), EFFICIENT),
    ("options:50", (True, 64, 64), 400, TURING, (0, {"ORT_DISABLE_TRT_FLASH_ATTENTION": "1"}), EFFICIENT),
]


@pytest.mark.parametrize(("line", "operator", "padded_length", "capability", "session", "route"), CASES)
def test_the_route_of_attention_is_that_of_onnx_runtime(
    line: str,
    operator: tuple[bool, int, int],
    padded_length: int,
    capability: tuple[int, int],
    session: Session,
    route: Route,
) -> None:
    attention = PackedAttention(*operator)
    assert attention_route(attention, padded_length, capability, KernelOptions.of(*session)) == route, line


def test_a_graph_without_the_operator_gathers_and_only_two_routes_compute_no_padding() -> None:
    assert attention_route(None, 64, A100, KernelOptions()) == GATHERED
    assert {route for route in Route if not route.pads} == {FLASH, EFFICIENT}


def test_a_session_without_options_has_the_default_options() -> None:
    assert KernelOptions.of(*DEFAULT) == KernelOptions()


def test_under_the_servers_options_the_route_is_the_same_for_all_lengths() -> None:
    options = KernelOptions.of(*SERVED)
    for half in (True, False):
        for sizes in ((64, 64), (32, 64), (128, 128), (264, 264), (20, 20), (1032, 64)):
            for capability in (TURING, A100, A10, ADA, HOPPER, BLACKWELL):
                attention = PackedAttention(half, *sizes)
                routes = {attention_route(attention, n, capability, options) for n in (1, 8, 255, 256, 384, 385, 4096)}
                assert len(routes) == 1


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
