"""Tests of the double itself; the double runs only in processes of its own, never in that of pytest."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.cuda_double import build
from tests.support.cuda_double.environment import double_in, run_on
from tests.support.cuda_double.log import Event, invalid_launches, kernel_name

if reason := build.why_unavailable():
    pytest.skip(reason, allow_module_level=True)

Finished = tuple[dict[str, Any], list[Event]]


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """What calls of the CUDA runtime gave on two devices, of which the second fails at its second launch; the log."""
    double = double_in(tmp_path_factory.mktemp("runtime"), devices=2, memory_gib=1)
    double.controls.fail_at_launch(2, device=1, error=719)
    return run_on(double, "runtime_calls"), double.log.events()


def test_libraries_have_the_functions_of_the_provider() -> None:
    def symbols(library: Path, which: str) -> set[str]:
        listed = subprocess.run(["nm", "-D", which, library], capture_output=True, text=True, check=True).stdout
        return set(re.findall(r" [A-Za-z] ((?:__)?cu\w+(?:@+libcu[\w.]+)?)$", listed.replace("@@", "@"), re.MULTILINE))

    provider = build.provider_library()
    assert provider is not None
    defined = set[str]().union(*(symbols(build.build() / name, "--defined-only") for name in build.LIBRARIES))
    assert symbols(provider, "--undefined-only") - defined == set()


def test_runtime_moves_bytes_and_counts_memory(runtime: Finished) -> None:
    (found, _), gib, mib = runtime, 1 << 30, 1 << 20
    assert found["memory"] == [[gib, gib], [gib - mib, gib], [gib, gib]]
    assert bytes.fromhex(found["copied"]) == b"text" + b"\xff" * 4
    assert found["copy beyond the end"] == 1
    assert found["free"] == [0, 0, 1]
    assert found["too large"] == 2


def test_runtime_refuses_what_a_card_refuses(runtime: Finished) -> None:
    found, events = runtime
    assert found["launches"] == [0, 9, 9, 9, 1]
    assert [launch.invalid for launch in invalid_launches(events)] == ["grid", "zero", "block", "shared_memory"]
    assert found["last error"] == [1, 0]
    assert found["names"] == [
        ["cudaErrorMemoryAllocation", "out of memory"],
        ["cudaErrorIllegalAddress", "an illegal memory access was encountered"],
        ["unrecognized error code"] * 2,
    ]


def test_unsafe_calls_invalidate_a_capture(runtime: Finished) -> None:
    unsupported, invalidated = 900, 901
    assert runtime[0]["captures"] == [[unsupported, invalidated, 2], [0, 0, 1], [unsupported, invalidated, 2]]


def test_a_failed_launch_poisons_one_device(runtime: Finished) -> None:
    assert runtime[0]["poisoned"] == [0, 719, 719]
    assert runtime[0]["other device"] == 0


@pytest.mark.parametrize(
    ("mangled", "name"),
    [
        ("_Z13_GatherKernelIlEvllPKT_", "_GatherKernel"),
        ("_ZN11onnxruntime4cuda16cuApplyLayerNormIfLb0EEEvPT_", "cuApplyLayerNorm"),
        ("plain", "plain"),
    ],
)
def test_kernel_name_is_short(mangled: str, name: str) -> None:
    assert kernel_name(mangled) == name
