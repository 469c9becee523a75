"""A server that cannot start exits with one sentence; a starting server refuses requests until its model is ready."""

import asyncio
import errno
import hashlib
import json
import logging
import os
import shutil
import socket
import subprocess
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from headwaiter_client import Unavailable
from headwaiter_server.app import Server
from headwaiter_server.runtime.bundle import Bundle
from headwaiter_server.runtime.errors import ProviderUnavailable
from headwaiter_server.runtime.graph import EncoderGraph, Outputs
from headwaiter_server.runtime.model import Model, open_model
from headwaiter_server.runtime.packing import PackedBatch
from headwaiter_server.runtime.warmup import Lengths, typical_batch
from testbed.minilm import command_path
from testbed.server_process import FRONT_ENDS, running_server
from tests.e2e.grpc_errors import is_from_server
from tests.e2e.in_process_server import connect, front_ends_in_loop, local_settings, metrics_url, serving
from tests.e2e.prometheus_metrics import read_metric

CPU_GRAPH = "packed-cpu.fp32.onnx"
MESSAGE_PREFIX = "headwaiter-server: "


@pytest.fixture
def damaged(text_bundle: Path, tmp_path: Path) -> Path:
    """A copy of the bundle "tiny-text" that a test may damage."""
    return Path(shutil.copytree(text_bundle, tmp_path / "damaged"))


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken.getsockname()[1]


@pytest.mark.parametrize("name", ["weights.fp32.bin", CPU_GRAPH])
def test_a_file_with_a_flipped_byte_is_refused(damaged: Path, name: str) -> None:
    flip_a_byte(damaged / name)
    status, message = failed_start(str(damaged))
    assert status == 1
    assert str(damaged / name) in message
    assert "SHA-256" in message


def test_a_damaged_graph_with_a_matching_checksum_is_refused(damaged: Path) -> None:
    graph = damaged / CPU_GRAPH
    graph.write_bytes(graph.read_bytes()[:-100])
    update_manifest(damaged, graph)
    status, message = failed_start(str(damaged))
    assert status == 1
    assert str(graph) in message
    assert "SHA-256" not in message


@pytest.mark.parametrize("kind", ["pooled", "hidden"])
def test_golden_answers_that_differ_by_a_thousandth_are_refused(damaged: Path, kind: str) -> None:
    golden = damaged / "golden.npz"
    with np.load(golden) as arrays:
        changed = {**arrays, kind: arrays[kind] + np.float32(1e-3)}
    np.savez(golden, **changed)
    update_manifest(damaged, golden)
    status, message = failed_start(str(damaged))
    assert status == 1
    assert all(fact in message for fact in (str(damaged / CPU_GRAPH), "cpu", "golden", kind))


def test_a_missing_bundle_is_named_with_the_command_that_makes_one(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    status, message = failed_start(str(nowhere))
    assert status == 1
    assert all(fact in message for fact in (str(nowhere), "headwaiter-export"))


def test_a_requested_but_unusable_cuda_is_an_error(text_bundle: Path) -> None:
    reason = why_no_cuda(text_bundle)
    assert failed_start(str(text_bundle), "--provider", "cuda") == (1, reason)


async def test_auto_falls_back_to_the_cpu_and_reports_it_in_log_api_and_metrics(
    text_bundle: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reason = why_no_cuda(text_bundle)
    caplog.set_level(logging.INFO, "headwaiter_server")
    async with serving(text_bundle, provider="auto") as server, connect(server) as client:
        execution = (await client.model()).execution
        assert (execution.provider, execution.requested_provider) == ("cpu", "auto")
        assert execution.fallback_reason == reason
        assert await read_metric(metrics_url(server), "headwaiter_provider_fallback") == 1
        assert await read_metric(metrics_url(server), "headwaiter_model_info", provider="cpu", graph=CPU_GRAPH) == 1
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert any(reason in message for message in warnings)
    # The line that announces the served model says so, without the reason a second time.
    assert [reason in message for message in caplog.messages if CPU_GRAPH in message] == [False]
    assert any(CPU_GRAPH in message and "CUDA was preferred" in message for message in caplog.messages)


async def test_a_restart_uses_the_learnt_batch_costs_and_reports_it_in_log_and_api(
    text_bundle: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headwaiter_server")
    costs = []
    for word in ("measured", "remembered"):
        async with (
            serving(text_bundle, cache_dir=tmp_path) as server,
            connect(server) as client,
        ):
            execution = (await client.model()).execution
            assert await read_metric(metrics_url(server), "headwaiter_token_budget") == execution.token_budget >= 128
            # What 200 batches have taught is stored.
            for length in range(1, 201):
                await client.encode_tokens([[1] * (length % 60 + 1)])
            assert await read_metric(metrics_url(server), "headwaiter_batch_cost_error_ratio_count") == 200
        (line,) = [message for message in caplog.messages if CPU_GRAPH in message and word in message]
        assert execution.longest_sequence_bytes > 0
        assert f"{execution.longest_sequence_bytes / 2**20:,.0f} MiB for one sequence of 64 tokens" in line
        costs.append(execution.cost)
    assert [cost.remembered for cost in costs] == [False, True]
    assert all(cost.service_tokens_per_s > 0 for cost in costs)


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        ([], ("bundle",)),
        (["b", "--provider", "gpu"], ("--provider", "'gpu'", "auto", "cuda", "cpu")),
        (["b", "--address", "50051"], ("--address", "'50051'", "HOST:PORT")),
        (["b", "--metrics-port", "70000"], ("--metrics-port", "'70000'")),
        (["b", "--max-queue-tokens", "0"], ("--max-queue-tokens", "'0'")),
        (["b", "--tls-cert", "/nowhere.pem"], ("--tls-cert", "'/nowhere.pem'")),
        (["b", "--port", "50051"], ("--port", "50051")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_setting_is_named_with_its_value(arguments: list[str], facts: tuple[str, ...]) -> None:
    status, message = failed_start(*arguments)
    assert status == 2
    assert all(fact in message for fact in facts)


def test_a_wrong_environment_variable_is_named_by_its_flag() -> None:
    status, message = failed_start("b", HEADWAITER_THREADS="many")
    assert status == 2
    assert all(fact in message for fact in ("--threads", "'many'"))


def test_a_taken_port_is_named(text_bundle: Path, taken_port: int) -> None:
    grpc_port = f"127.0.0.1:{taken_port}"
    status, message = failed_start(str(text_bundle), "--address", grpc_port)
    assert status == 1
    assert all(fact in message for fact in ("--address", grpc_port))
    status, message = failed_start(str(text_bundle), "--metrics-port", str(taken_port))
    assert status == 1
    assert all(fact in message for fact in ("--metrics-port", str(taken_port), os.strerror(errno.EADDRINUSE)))


async def test_a_starting_server_is_not_serving_and_its_methods_are_unavailable(
    text_bundle: Path,
) -> None:
    loading, ready = threading.Event(), threading.Event()

    def open_slowly(*arguments: Any) -> Model:
        loading.set()
        assert ready.wait(10)
        return open_model(*arguments)

    server = Server(local_settings(text_bundle))
    with patch("headwaiter_server.models.loading.open_model", open_slowly), front_ends_in_loop():
        starting = asyncio.create_task(server.start())
        assert await asyncio.to_thread(loading.wait, 10)
        async with connect(server) as client:
            assert not await client.is_serving()
            for call in (client.encode(["bread"]), client.model(), client.models()):
                with pytest.raises(Unavailable) as refused:
                    await call
                assert is_from_server(refused.value)
                assert "starting" in str(refused.value)
            ready.set()
            await starting
            assert await client.is_serving()
            assert (await client.encode(["bread"])).pooled is not None
    await server.drain()


async def test_every_session_runs_a_full_batch_before_it_serves(text_bundle: Path) -> None:
    run, ran = EncoderGraph.run, defaultdict[EncoderGraph, set[Lengths]](set)

    def record(graph: EncoderGraph, batch: PackedBatch, *, hidden: bool) -> Outputs:
        ran[graph].add(tuple(batch.lengths.tolist()))
        return run(graph, batch, hidden=hidden)

    with patch.object(EncoderGraph, "run", record):
        async with serving(text_bundle, instances=2) as server, connect(server) as client:
            budget_tokens = (await client.model()).execution.token_budget
    assert len(ran) == 2
    full = typical_batch(Bundle.open(text_bundle).manifest, budget_tokens)
    assert all(full in lengths for lengths in ran.values())


def failed_start(*arguments: str, **variables: str) -> tuple[int, str]:
    """Run a server that must not start; return its exit status and its only line, without the command's name."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAITER_")}
    defaults = {"HEADWAITER_PROVIDER": "cpu", "HEADWAITER_ADDRESS": "127.0.0.1:0", "HEADWAITER_METRICS_PORT": "0"}
    defaults["HEADWAITER_FRONT_ENDS"] = os.environ[FRONT_ENDS]
    completed = subprocess.run(
        [command_path("headwaiter-server"), *arguments],
        env={**inherited, **defaults, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert completed.stdout == ""
    # gRPC itself logs a line about a taken port.
    lines = [line for line in completed.stderr.splitlines() if "add_port.cc" not in line]
    assert len(lines) == 1, completed.stderr
    assert lines[0].startswith(MESSAGE_PREFIX)
    return completed.returncode, lines[0].removeprefix(MESSAGE_PREFIX)


def flip_a_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def update_manifest(bundle: Path, file: Path) -> None:
    """Update the size and the checksum of a changed file in the manifest."""
    manifest = bundle / "manifest.json"
    content = json.loads(manifest.read_text())
    (entry,) = (entry for entry in content["files"] if entry["name"] == file.name)
    entry["sizeBytes"] = file.stat().st_size
    entry["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
    manifest.write_text(json.dumps(content))


def why_no_cuda(bundle: Path) -> str:
    """Return ONNX Runtime's reason why CUDA does not work; skip the test if CUDA works."""
    try:
        EncoderGraph.open(bundle / "packed-cuda.fp32.onnx", "cuda")
    except ProviderUnavailable as unavailable:
        return str(unavailable)
    pytest.skip("CUDA works on this machine")


def test_the_log_names_too_many_threads_and_a_misspelt_variable(text_bundle: Path, tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        wrapper = ["env", "HEADWAITER_TOKEN_BUDJET=64"]
        with running_server(text_bundle, ["--provider", "cpu", "--threads", "999"], wrapper, log=log) as server:
            threads = len(list(Path(f"/proc/{server.process.pid}/task").iterdir()))
    assert threads < 500
    lines = (tmp_path / "log").read_text()
    assert "HEADWAITER_TOKEN_BUDJET" in lines
    assert "HEADWAITER_TOKEN_BUDGET" in lines
    assert "999" in lines
