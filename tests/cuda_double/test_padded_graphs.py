"""The padded graphs of a module run on the CUDA provider; the CPU computes only sizes of arrays."""

from pathlib import Path

import pytest

from headwaiter_export import export_module
from headwaiter_export.bundle.graphs import PADDED_GRAPHS
from headwaiter_server.runtime.attention_routes import Route
from tests.support.cuda_double.environment import double_in, run_on
from tests.support.export.own_modules import MAX_TOKENS, PADDED, random_module

pytestmark = pytest.mark.usefixtures("_double")

SIZES_BYTES = 40


def test_padded_graphs_run_on_cuda(tmp_path: Path) -> None:
    make, takes, *_ = PADDED["masked"]
    folder = tmp_path / "bundle"
    export_module(random_module(make), folder, max_tokens=MAX_TOKENS, plans=PADDED_GRAPHS, **takes)
    found = run_on(double_in(tmp_path), "forms", "1", f"masked={folder}")
    assert set(found) == {"masked fp32 0", "masked fp16 0"}
    for graph in found.values():
        assert graph["route"] == Route.GATHERED
        for provider, operator, size_bytes in graph["nodes"]:
            assert provider == "CPUExecutionProvider"
            assert size_bytes <= SIZES_BYTES, operator
