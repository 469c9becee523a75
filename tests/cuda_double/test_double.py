"""Tests of the double itself; the double runs only in processes of its own, never in that of pytest."""

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.cuda_double import build
from tests.support.cuda_double.environment import Double, double_in
from tests.support.cuda_double.log import (
    Allocation,
    Capture,
    Context,
    Event,
    Failure,
    GraphLaunch,
    Launch,
    Product,
    Wait,
    between,
    bytes_in_use,
    copies,
    invalid_launches,
    kernel_name,
    kernel_names,
    of,
    peak_bytes,
    waits,
)

_REPOSITORY = Path(__file__).parents[2]
_FLOAT_BYTES = 4

if reason := build.why_unavailable():
    pytest.skip(reason, allow_module_level=True)


@dataclass(frozen=True)
class Finished:
    """What a process on the double found, and its log."""

    found: dict[str, Any]
    events: list[Event]
    double: Double


def start(script: str, double: Double) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", f"tests.support.cuda_double.{script}"]
    return subprocess.Popen(
        command, env=double.environment, cwd=_REPOSITORY, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """ONNX Runtime's sessions on two devices, the first of which hangs for a while."""
    double = double_in(tmp_path_factory.mktemp("sessions"), devices=2, capability=["8.0", "9.0"])
    with start("sessions", double) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "hang\n"
        double.controls.hang()
        process.stdin.write("\n")
        process.stdin.flush()
        double.controls.wait_until_hanging()
        double.log.mark("released")
        double.controls.release()
        found = json.loads(process.stdout.read())
    assert process.returncode == 0
    return Finished(found, double.log.events(), double)


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Calls of the CUDA runtime on two devices, the second of which fails at its second launch."""
    double = double_in(tmp_path_factory.mktemp("runtime"), devices=2, memory_gib=1)
    faults = {"CUDA_DOUBLE_LAUNCH_ERROR": "0,719", "CUDA_DOUBLE_LAUNCHES_BEFORE_ERROR": "0,1"}
    process = start("runtime_calls", Double({**double.environment, **faults}, double.log, double.controls))
    output, _ = process.communicate()
    return Finished(json.loads(output), double.log.events(), double)


def test_libraries_have_the_functions_of_the_provider() -> None:
    def symbols(library: Path, which: str) -> set[str]:
        listed = subprocess.run(["nm", "-D", which, library], capture_output=True, text=True, check=True).stdout
        return set(re.findall(r" [A-Za-z] ((?:__)?cu\w+(?:@+libcu[\w.]+)?)$", listed.replace("@@", "@"), re.MULTILINE))

    provider = build.provider_library()
    assert provider is not None
    defined = set[str]().union(*(symbols(build.build() / name, "--defined-only") for name in build.LIBRARIES))
    assert symbols(provider, "--undefined-only") - defined == set()


def test_sessions_run_on_cuda(sessions: Finished) -> None:
    assert sessions.found["providers"][0] == "CUDAExecutionProvider"
    assert sessions.found["capabilities"] == [[8, 0], [9, 0], None]
    events = between(sessions.events, "run", "ran")
    (product,) = of(Product, events)
    assert {product.m, product.n, product.k} == {16, 4, 8}
    assert product.types == ("float32",) * 3
    assert not product.error
    assert kernel_names(events)
    assert not invalid_launches(sessions.events)
    assert {event.device for event in (*of(Launch, events), product)} == {0}


def test_log_has_direction_and_size_of_copies(sessions: Finished) -> None:
    events = between(sessions.events, "run", "ran")
    assert [copy.bytes for copy in copies(events, "pageable to device")] == [4 * 8 * _FLOAT_BYTES]
    assert [copy.bytes for copy in copies(events, "device to pageable")] == [4 * 16 * _FLOAT_BYTES]
    assert [copy.waits for copy in copies(events)].count(True) == len([wait for wait in waits(events) if wait.implied])
    assert sessions.found["uploaded values return"]


def test_memory_is_counted_for_each_device(sessions: Finished) -> None:
    before_capture = sessions.events[: _index(sessions.events, "capture")]
    assert [bytes_in_use(before_capture, device) for device in (0, 1)] == sessions.found["memory in use"]
    assert peak_bytes(sessions.events, 0) >= bytes_in_use(sessions.events, 0) > 0
    assert {context.device for context in of(Context, sessions.events)} == {0, 1}


def test_cuda_graph_is_captured_once_and_launched(sessions: Finished) -> None:
    events = between(sessions.events, "capture", "captured")
    begin, end = of(Capture, events)
    assert (begin.action, end.action, end.error) == ("begin", "end", 0)
    captured = [launch.captured for launch in of(Launch, events)] + [
        product.captured for product in of(Product, events)
    ]
    assert end.launches == captured.count(True) > 0
    assert all(launch.launches == end.launches for launch in of(GraphLaunch, events))
    assert of(GraphLaunch, events)


def test_out_of_memory_is_an_error_of_onnx_runtime(sessions: Finished) -> None:
    assert "Failed to allocate memory" in sessions.found["out of memory"]
    assert not sessions.found["after out of memory"]
    assert [allocation.error for allocation in of(Allocation, sessions.events)].count(2) >= 1


def test_hang_lasts_until_released(sessions: Finished) -> None:
    assert not sessions.found["after the hang"]
    released = _index(sessions.events, "released")
    assert isinstance(sessions.events[released - 1], Wait)
    assert sessions.events[released].at_ns < sessions.events[released + 1].at_ns


def test_failed_launch_poisons_one_device(sessions: Finished) -> None:
    assert all("an illegal memory access was encountered" in message for message in sessions.found["failed launch"])
    assert not sessions.found["other device after failed launch"]
    assert "CUDA-capable device(s) is/are busy or unavailable" in sessions.found["vanished"]
    failures = [(failure.device, failure.error_name) for failure in of(Failure, sessions.events)]
    assert failures == [(0, "cudaErrorIllegalAddress"), (1, "cudaErrorDevicesUnavailable")]


def test_runtime_moves_bytes_and_counts_memory(runtime: Finished) -> None:
    found, gib, mib = runtime.found, 1 << 30, 1 << 20
    assert found["memory"] == [[gib, gib], [gib - mib, gib], [gib, gib]]
    assert bytes.fromhex(found["copied"]) == b"text" + b"\xff" * 4
    assert found["copy beyond the end"] == 1
    assert found["free"] == [0, 0, 1]
    assert found["too large"] == 2
    assert peak_bytes(runtime.events) == mib


def test_runtime_refuses_what_a_card_refuses(runtime: Finished) -> None:
    assert runtime.found["launches"] == [0, 9, 9, 9, 1]
    assert [launch.invalid for launch in invalid_launches(runtime.events)] == ["grid", "zero", "block", "shared_memory"]
    assert runtime.found["last error"] == [1, 0]
    assert runtime.found["names"] == [
        ["cudaErrorMemoryAllocation", "out of memory"],
        ["cudaErrorIllegalAddress", "an illegal memory access was encountered"],
        ["unrecognized error code"] * 2,
    ]


def test_unsafe_calls_invalidate_a_capture(runtime: Finished) -> None:
    unsupported, invalidated = 900, 901
    assert runtime.found["captures"] == [[unsupported, invalidated, 2], [0, 0, 1], [unsupported, invalidated, 2]]


def test_environment_makes_a_device_fail(runtime: Finished) -> None:
    assert runtime.found["poisoned"] == [0, 719, 719]
    assert runtime.found["other device"] == 0


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


def _index(events: list[Event], mark: str) -> int:
    return next(i for i, event in enumerate(events) if getattr(event, "text", None) == mark)
