"""A server that cannot serve says why in one sentence; one that starts takes no requests before its model is ready."""

import asyncio
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
from headwaiter_server.runtime.warmup import Lengths, usual_batch
from testbed.minilm import command
from tests.e2e.inside import connect, metrics_url, serving, settings
from tests.e2e.scrape import metric

CPU_GRAPH = "packed-cpu.fp32.onnx"
NAME = "headwaiter-server: "


@pytest.fixture
def damaged(text_bundle: Path, tmp_path: Path) -> Path:
    """A copy of "tiny-text" that a test may damage."""
    return Path(shutil.copytree(text_bundle, tmp_path / "damaged"))


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken.getsockname()[1]


@pytest.mark.parametrize("name", ["weights.fp32.bin", CPU_GRAPH])
def test_a_flipped_byte_in_weights_or_graph_is_refused(damaged: Path, name: str) -> None:
    flip_a_byte(damaged / name)
    sentence = f"{damaged / name} is damaged (its SHA-256 is not the manifest's): copy or export it again"
    assert failure(str(damaged)) == (1, sentence)


def test_a_graph_that_was_damaged_before_it_was_signed_is_refused(damaged: Path) -> None:
    graph = damaged / CPU_GRAPH
    graph.write_bytes(graph.read_bytes()[:-100])
    sign(damaged, graph)
    status, sentence = failure(str(damaged))
    assert status == 1
    assert sentence.startswith(f"ONNX Runtime cannot run {graph}: ")


@pytest.mark.parametrize("kind", ["pooled", "hidden"])
def test_golden_answers_that_are_off_by_a_thousandth_are_refused(damaged: Path, kind: str) -> None:
    golden = damaged / "golden.npz"
    with np.load(golden) as arrays:
        changed = {**arrays, kind: arrays[kind] + np.float32(1e-3)}
    np.savez(golden, **changed)
    sign(damaged, golden)
    status, sentence = failure(str(damaged))
    assert status == 1
    assert sentence.startswith(
        f"{damaged / CPU_GRAPH} on cpu breaks the numeric contract on the bundle's golden inputs: "
        f"{kind} answers differ from PyTorch by "
    )


def test_without_a_bundle_the_server_says_how_to_make_one(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    sentence = f"there is no bundle at {nowhere}: make one with headwaiter-export checkpoint FOLDER -o {nowhere}"
    assert failure(str(nowhere)) == (1, sentence)


def test_cuda_that_does_not_work_is_an_error_where_it_was_asked_for(text_bundle: Path) -> None:
    reason = why_no_cuda(text_bundle)
    assert failure(str(text_bundle), "--provider", "cuda") == (1, reason)


async def test_auto_falls_back_to_the_cpu_and_says_so_in_the_log_to_clients_and_in_metrics(
    text_bundle: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reason = why_no_cuda(text_bundle)
    caplog.set_level(logging.INFO, "headwaiter_server")
    async with serving(text_bundle, provider="auto") as server, connect(server) as client:
        execution = (await client.model()).execution
        assert (execution.provider, execution.requested_provider) == ("cpu", "auto")
        assert execution.fallback_reason == reason
        assert metric(metrics_url(server), "headwaiter_provider_fallback") == 1
        assert metric(metrics_url(server), "headwaiter_model_info", provider="cpu", graph=CPU_GRAPH) == 1
    assert f"running on the CPU: {reason}" in caplog.messages
    assert any("on cpu (CUDA was preferred" in message for message in caplog.messages)


async def test_a_restart_remembers_what_batches_cost_and_says_so_in_the_log_and_to_clients(
    text_bundle: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whatever else the tests' machine does meanwhile.
    monkeypatch.setattr("headwaiter_server.scheduling.calibration_cache._STEADY_ERROR_RATIO", float("inf"))
    caplog.set_level(logging.INFO, "headwaiter_server")
    costs = []
    for word in ("measured", "remembered"):
        async with (
            serving(text_bundle, cache_dir=tmp_path) as server,
            connect(server) as client,
        ):
            execution = (await client.model()).execution
            assert (await client.encode(["bread"])).pooled is not None
            assert metric(metrics_url(server), "headwaiter_token_budget") == execution.token_budget >= 128
            assert metric(metrics_url(server), "headwaiter_batch_cost_error_ratio_count") == 1
        assert any(f"a second ({word}, within " in message for message in caplog.messages)
        costs.append(execution.cost)
    assert [cost.remembered for cost in costs] == [False, True]
    costs[1].remembered = False
    assert costs[0] == costs[1]
    assert costs[0].service_tokens_per_s > 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "no bundle given: name its folder"),
        (["b", "--provider", "gpu"], "--provider 'gpu' is not auto, cuda or cpu"),
        (["b", "--address", "50051"], "--address '50051' is not HOST:PORT"),
        (["b", "--metrics-port", "70000"], "--metrics-port '70000' is not a port number"),
        (["b", "--max-queue-tokens", "0"], "--max-queue-tokens '0' is not a positive number"),
        (["b", "--tls-cert", "/nowhere.pem"], "--tls-cert '/nowhere.pem' is not a file that is there"),
        (["b", "--port", "50051"], "unrecognized arguments: --port 50051"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_setting_is_named(arguments: list[str], sentence: str) -> None:
    status, said = failure(*arguments)
    assert status == 2
    assert said.startswith(sentence)


def test_a_wrong_environment_variable_is_named_by_its_flag() -> None:
    assert failure("b", HEADWAITER_THREADS="many") == (2, "--threads 'many' is not a whole number from 0")


def test_a_taken_port_is_named(text_bundle: Path, taken_port: int) -> None:
    grpc_port = f"127.0.0.1:{taken_port}"
    status, sentence = failure(str(text_bundle), "--address", grpc_port)
    assert (status, sentence) == (
        1,
        f"--address {grpc_port} cannot be served: another server has it, or the host is not this one",
    )
    status, sentence = failure(str(text_bundle), "--metrics-port", str(taken_port))
    assert (status, sentence) == (1, f"--metrics-port {taken_port} cannot be served: Address already in use")


async def test_until_its_model_is_ready_a_server_is_not_serving_and_its_methods_are_unavailable(
    text_bundle: Path,
) -> None:
    loading, ready = threading.Event(), threading.Event()

    def open_slowly(*arguments: Any) -> Model:
        loading.set()
        assert ready.wait(10)
        return open_model(*arguments)

    server = Server(settings(text_bundle))
    with patch("headwaiter_server.models.loading.open_model", open_slowly):
        starting = asyncio.create_task(server.start())
        assert await asyncio.to_thread(loading.wait, 10)
        async with connect(server) as client:
            assert not await client.is_serving()
            for call in (client.encode(["bread"]), client.model(), client.models()):
                with pytest.raises(Unavailable, match="the server is starting"):
                    await call
            ready.set()
            await starting
            assert await client.is_serving()
            assert (await client.encode(["bread"])).pooled is not None
    await server.drain()


async def test_every_session_has_run_a_full_batch_before_requests_come(text_bundle: Path) -> None:
    run, ran = EncoderGraph.run, defaultdict[EncoderGraph, set[Lengths]](set)

    def note(graph: EncoderGraph, batch: PackedBatch, *, hidden: bool) -> Outputs:
        ran[graph].add(tuple(batch.lengths.tolist()))
        return run(graph, batch, hidden=hidden)

    with patch.object(EncoderGraph, "run", note):
        async with serving(text_bundle, instances=2) as server, connect(server) as client:
            budget_tokens = (await client.model()).execution.token_budget
    assert len(ran) == 2
    full = usual_batch(Bundle.open(text_bundle).manifest, budget_tokens)
    assert all(full in lengths for lengths in ran.values())


def failure(*arguments: str, **variables: str) -> tuple[int, str]:
    """Run the server, which must not start; return its exit status and the one sentence it says."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAITER_")}
    usual = {"HEADWAITER_PROVIDER": "cpu", "HEADWAITER_ADDRESS": "127.0.0.1:0", "HEADWAITER_METRICS_PORT": "0"}
    ended = subprocess.run(
        [command("headwaiter-server"), *arguments],
        env={**outside, **usual, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.stdout == ""
    said = [line for line in ended.stderr.splitlines() if "add_port.cc" not in line]  # gRPC's own word on a taken port
    assert len(said) == 1, ended.stderr
    assert said[0].startswith(NAME)
    return ended.returncode, said[0].removeprefix(NAME)


def flip_a_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def sign(bundle: Path, file: Path) -> None:
    """Write a file's size and checksum into the manifest, as if the bundle had been made with it."""
    manifest = bundle / "manifest.json"
    content = json.loads(manifest.read_text())
    (entry,) = (entry for entry in content["files"] if entry["name"] == file.name)
    entry["sizeBytes"] = file.stat().st_size
    entry["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
    manifest.write_text(json.dumps(content))


def why_no_cuda(bundle: Path) -> str:
    """Return the runtime's reason, or skip the test where CUDA works."""
    try:
        EncoderGraph.open(bundle / "packed-cuda.fp32.onnx", "cuda")
    except ProviderUnavailable as unavailable:
        return str(unavailable)
    pytest.skip("CUDA works here")
