"""The whole server runs on ONNX Runtime's CUDA provider, on the double: its numbers mean nothing, all else is real."""

import re
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headwaiter_client import Client
from testbed.minilm import command_path
from tests.support.cuda_double import build
from tests.support.cuda_double.environment import Double, double_in
from tests.support.cuda_double.log import Capture, GraphLaunch, between, bytes_in_use, copies, kernel_names, of
from tests.support.cuda_double.servers import ServerOnDouble, serving

if reason := build.why_unavailable():
    pytest.skip(reason, allow_module_level=True)

SERVER, BUDGET = "unchecked_server", ("--token-budget", "1024")
_START_TIMEOUT_S = 60
_GIB = 1 << 30


def start(bundle: Path, double: Double, *flags: str) -> "subprocess.CompletedProcess[str]":
    """Start the server as it is, and return its exit status and its log."""
    command = [command_path("headwaiter-server"), str(bundle), "--address", "127.0.0.1:0", "--metrics-port", "0"]
    return subprocess.run(
        [*command, "--provider", "cuda", *flags],
        env=double.environment,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=_START_TIMEOUT_S,
    )


@pytest.fixture(scope="module")
def on_two_devices(text_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerOnDouble]:
    folder = tmp_path_factory.mktemp("server")
    double = double_in(folder, devices=2, memory_gib=24)
    with serving(SERVER, text_bundle, folder, double, *BUDGET, "--devices", "0,1") as server:
        yield server


def test_encode_answers_with_a_row_for_each_text_and_each_token(on_two_devices: ServerOnDouble) -> None:
    with Client(on_two_devices.server.address) as client:
        result = client.encode_tokens([[1] * 5, [2], [3] * 40], hidden=True)
        assert result.pooled.shape == (3, 32)
        assert [rows.shape for rows in result.hidden] == [(5, 32), (1, 32), (40, 32)]
        assert len(client.encode(["fresh bread"] * 100).pooled) == 100


def test_the_server_is_ready_and_says_that_it_serves_fp16_on_cuda(on_two_devices: ServerOnDouble) -> None:
    with Client(on_two_devices.server.address) as client:
        assert client.is_serving()
        description = client.model()
        assert description.model.precision == "fp16"
        assert description.execution.provider == "cuda"


def test_metrics_show_the_memory_of_each_device(on_two_devices: ServerOnDouble) -> None:
    with urllib.request.urlopen(on_two_devices.server.metrics_url) as page:
        families = {each.name: each for each in text_string_to_metric_families(page.read().decode())}
    used, total = (
        {sample.labels["gpu"]: sample.value for sample in families[f"headwaiter_gpu_memory_{kind}_bytes"].samples}
        for kind in ("used", "total")
    )
    events = on_two_devices.double.log.events()
    assert total == {"0": 24 * _GIB, "1": 24 * _GIB}
    assert used == {str(device): bytes_in_use(events, device) for device in (0, 1)}
    assert min(used.values()) > 0


def test_both_devices_run_batches(on_two_devices: ServerOnDouble) -> None:
    on_two_devices.double.log.mark("requests")
    with Client(on_two_devices.server.address) as client:
        for _ in range(20):
            client.encode_tokens([[1] * 40] * 200)
    events = on_two_devices.double.log.events()
    launches = of(GraphLaunch, events[[getattr(event, "text", "") for event in events].index("requests") :])
    assert {launch.device for launch in launches} == {0, 1}


def test_the_log_says_that_small_batches_have_cuda_graphs_and_how_long_they_take(
    on_two_devices: ServerOnDouble,
) -> None:
    lines = [line for line in on_two_devices.log.read_text().splitlines() if "CUDA graphs" in line]
    for line in lines:
        assert re.search(r"tiny-text has \d+ CUDA graphs: 17 tokens \d+\.\d+ instead of \d+\.\d+ ms", line)
    assert len(lines) == 2  # One for each device.


def test_small_requests_launch_one_graph_each_and_capture_none(on_two_devices: ServerOnDouble) -> None:
    on_two_devices.double.log.mark("small requests")
    lengths = [1, 5, 33, 64, 17] * 4
    with Client(on_two_devices.server.address) as client:
        for length in lengths:
            client.encode_tokens([[1] * length])
    on_two_devices.double.log.mark("small requests end")
    events = between(on_two_devices.double.log.events(), "small requests", "small requests end")
    assert len(of(GraphLaunch, events)) == len(lengths)
    assert len(copies(events)) == 2 * len(lengths)
    assert kernel_names(events) == []
    assert of(Capture, events) == []


def test_the_log_has_no_line_of_onnx_runtime(on_two_devices: ServerOnDouble) -> None:
    assert "onnxruntime" not in on_two_devices.log.read_text()


def test_a_missing_library_is_named(text_bundle: Path, tmp_path: Path) -> None:
    double = double_in(tmp_path)
    only_driver = tmp_path / "libraries"
    only_driver.mkdir()
    for library in (build.CORE, "libcuda.so.1", "libcudart.so.13"):
        (only_driver / library).symlink_to(build.build() / library)
    environment = {name: value for name, value in double.environment.items() if name != "LD_PRELOAD"}
    finished = start(
        text_bundle, Double({**environment, "LD_LIBRARY_PATH": str(only_driver)}, double.log, double.controls)
    )
    assert finished.returncode == 1
    assert "libcublas" in finished.stderr
    assert "headwaiter[cuda]" in finished.stderr


@pytest.mark.parametrize(
    ("flags", "largest_bytes", "facts"),
    [
        # Kernels on the double compute nothing.
        ((), 0, ("self-check",)),
        ((), 1 << 10, ("GPU memory",)),
        (("--devices", "1"), 0, ("GPU 1", "Invalid device ID: 1")),
    ],
    ids=["wrong outputs", "too little memory", "no such device"],
)
def test_a_server_that_cannot_use_its_device_says_why(
    text_bundle: Path, tmp_path: Path, flags: Sequence[str], largest_bytes: int, facts: Sequence[str]
) -> None:
    double = double_in(tmp_path)
    double.controls.limit_allocations(largest_bytes)
    finished = start(text_bundle, double, *flags)
    assert finished.returncode == 1
    for fact in facts:
        assert fact in finished.stderr
    assert "pip install" not in finished.stderr


def test_after_the_warm_up_batches_need_no_more_memory(text_bundle: Path, tmp_path: Path) -> None:
    double = double_in(tmp_path)
    with serving(SERVER, text_bundle, tmp_path, double, *BUDGET) as running, Client(running.server.address) as client:
        double.controls.limit_allocations(1)
        for length in (1, 7, 30, 64):
            assert len(client.encode_tokens([[1] * length] * (8000 // length)).pooled) == 8000 // length
