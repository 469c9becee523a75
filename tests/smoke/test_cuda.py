"""The graph for CUDA runs on the double of the CUDA runtime, with the kernels that the server predicts."""

from pathlib import Path

import pytest

from headwaiter_server.runtime.attention_routes import Route
from tests.support.cuda_double import build
from tests.support.cuda_double.environment import double_in, run_on
from tests.support.cuda_double.log import between, kernel_names

# The kernel of fp16 is that of attention without padding.
KERNELS = {"fp16": ("flash_fwd_kernel", Route.FLASH), "fp32": ("attention_kernel_batched_impl", Route.MEMORY_EFFICIENT)}


def test_the_graphs_of_a_text_model_run_on_cuda_without_padding(text_bundle: Path, tmp_path: Path) -> None:
    if reason := build.why_unavailable():
        pytest.skip(reason)
    double = double_in(tmp_path)
    found, events = run_on(double, "forms", "1", f"text={text_bundle}"), double.log.events()
    for precision, (kernel, route) in KERNELS.items():
        graph = f"text {precision} 0"
        assert found[graph]["route"] == route
        assert {provider for provider, *_ in found[graph]["nodes"]} <= {"CPUExecutionProvider"}
        for batch in found[graph]["inputs"]:
            assert kernel in kernel_names(between(events, f"{graph} {batch}", f"{graph} {batch} end"))
