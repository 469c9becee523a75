"""A server that cannot start exits with one sentence; a starting server refuses requests until its model is ready."""

import asyncio
import errno
import logging
import os
import socket
import subprocess
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from headwaiter_client import AsyncClient, Starting
from headwaiter_server.app import Server
from headwaiter_server.runtime.batch_timing import Lengths, typical_batch
from headwaiter_server.runtime.bundle import Bundle
from headwaiter_server.runtime.graph import EncoderGraph, GraphOutputs
from headwaiter_server.runtime.model import Model, open_model
from headwaiter_server.runtime.packing import PackedBatch
from testbed.minilm import command_path
from testbed.server_process import FRONT_ENDS
from tests.support.e2e.grpc_errors import is_from_server
from tests.support.e2e.in_process_server import connect, in_this_process, local_settings, metrics_url, serving
from tests.support.e2e.prometheus_metrics import read_metric
from tests.support.server.bundles import copy

CPU_GRAPH = "packed-cpu.fp32.onnx"


def test_a_damaged_bundle_is_refused_in_one_line(text_bundle: Path, tmp_path: Path) -> None:
    damaged = copy(text_bundle, tmp_path)
    graph = damaged / CPU_GRAPH
    size_bytes = graph.stat().st_size
    graph.write_bytes(graph.read_bytes()[:-100])
    status, (message,) = failed_start(str(damaged))
    assert status == 1
    assert message.startswith(f"headwaiter-server: {graph}")
    assert f"{size_bytes - 100:,} bytes" in message


def test_the_log_names_too_many_threads_and_a_misspelt_variable(tmp_path: Path) -> None:
    _, lines = failed_start(str(tmp_path), "--threads", "999", HEADWAITER_TOKEN_BUDJET="64")
    for words in (("HEADWAITER_TOKEN_BUDJET", "HEADWAITER_TOKEN_BUDGET"), ("--threads 999",)):
        assert any(all(word in line for word in words) for line in lines)


def test_a_server_whose_port_is_taken_exits_with_one_sentence(text_bundle: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        status, lines = failed_start(str(text_bundle), "--metrics-port", port)
    assert status == 1
    assert lines[-1].startswith("headwaiter-server: ")
    assert all(fact in lines[-1] for fact in ("--metrics-port", port, os.strerror(errno.EADDRINUSE)))


async def test_the_cost_of_batches_is_in_the_log_in_the_metrics_and_in_the_api(
    text_bundle: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headwaiter_server")
    async with serving(text_bundle) as server, connect(server) as client:
        execution = (await client.model()).execution
        assert await read_metric(metrics_url(server), "headwaiter_token_budget") == execution.token_budget >= 128
        await client.encode_tokens([[1] * 60])
        assert await read_metric(metrics_url(server), "headwaiter_batch_cost_error_ratio_count") == 1
    (line,) = [message for message in caplog.messages if CPU_GRAPH in message and "(measured" in message]
    assert execution.longest_sequence_bytes > 0
    assert f"{execution.longest_sequence_bytes / 2**20:,.0f} MiB for one sequence of 64 tokens" in line
    assert not execution.cost.remembered
    assert execution.cost.service_tokens_per_s > 0


async def test_a_starting_server_is_not_serving_and_calls_wait_for_it(
    text_bundle: Path,
) -> None:
    loading, ready = threading.Event(), threading.Event()

    def open_slowly(*arguments: Any) -> Model:
        loading.set()
        assert ready.wait(10)
        return open_model(*arguments)

    server = Server(local_settings(text_bundle))
    with patch("headwaiter_server.models.loading.open_model", open_slowly), in_this_process():
        starting = asyncio.create_task(server.start())
        assert await asyncio.to_thread(loading.wait, 10)
        async with connect(server) as client, AsyncClient(f"127.0.0.1:{server.port}") as patient:
            assert not await client.is_serving()
            for call in (client.encode(["bread"]), client.model(), client.models()):
                with pytest.raises(Starting) as refused:
                    await call
                assert is_from_server(refused.value)
                assert refused.value.retry_after_s == 1
            waiting = asyncio.create_task(patient.encode(["bread"]))
            # The patient client has used up the attempts and the pauses that it takes if a server stays unavailable.
            await asyncio.sleep(2)
            assert not waiting.done()
            ready.set()
            await starting
            assert (await waiting).pooled is not None
            assert await client.is_serving()
            assert (await client.encode(["bread"])).pooled is not None
    await server.drain()


async def test_every_session_runs_a_full_batch_before_it_serves(text_bundle: Path) -> None:
    run, ran = EncoderGraph.run, defaultdict[EncoderGraph, set[Lengths]](set)

    def record(graph: EncoderGraph, batch: PackedBatch, *, hidden: bool) -> GraphOutputs:
        ran[graph].add(tuple(batch.lengths.tolist()))
        return run(graph, batch, hidden=hidden)

    with patch.object(EncoderGraph, "run", record):
        async with serving(text_bundle, instances=2) as server, connect(server) as client:
            budget_tokens = (await client.model()).execution.token_budget
    assert len(ran) == 2
    full = typical_batch(Bundle.open(text_bundle).manifest, budget_tokens)
    assert all(full in lengths for lengths in ran.values())


def failed_start(*arguments: str, **variables: str) -> tuple[int, list[str]]:
    """Run a server that must not start; return its exit status and its lines."""
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
    return completed.returncode, completed.stderr.splitlines()
