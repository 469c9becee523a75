"""Models that are loaded on demand: within the deadline of a call, in the place of others, again after a fault."""

import asyncio
import random
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2

from headwaiter_client import AsyncClient, DeadlineExceeded, ModelNotFound, Overloaded, Unavailable
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto import open_inference_pb2 as oip
from headwaiter_server.app import Server
from headwaiter_server.models import versions
from headwaiter_server.models.folders import FoundVersion
from headwaiter_server.models.loading import load_model
from headwaiter_server.models.on_disk import describe
from headwaiter_server.requests.threads import THREADS
from headwaiter_server.settings.flags import Settings
from tests.e2e.test_several_models import (
    add_version,
    health_of,
    paused_loads,
    states_of,
    wait_for_state,
)
from tests.support.e2e.in_process_server import connect, metrics_url, post, serving
from tests.support.e2e.open_inference_caller import calling, raw_request
from tests.support.e2e.prometheus_metrics import read_metric

NAMES = ("a", "b", "c")
ON_DISK = {(name, "1"): "on_disk" for name in NAMES}


@pytest.fixture
def models(tmp_path: Path, text_bundle: Path) -> Path:
    """A folder of the models "a", "b" and "c", which need the same memory."""
    for name in NAMES:
        add_version(tmp_path / "models" / name / "1", text_bundle)
    return tmp_path / "models"


def size_of(bundle: Path) -> int:
    return describe(FoundVersion("a", 1, bundle), Settings(models=bundle.parent, provider="cpu")).size_bytes


@asynccontextmanager
async def on_demand(folder: Path, fit: int = 0, **changes: Any) -> AsyncIterator[tuple[Server, AsyncClient]]:
    """Serve the models of a folder on demand; `fit` of the models fit in memory."""
    limit = fit * size_of(folder / "a" / "1")
    async with (
        serving(None, models=folder, load="on-demand", max_model_bytes=limit, **changes) as server,
        connect(server) as client,
    ):
        yield server, client


async def test_a_model_is_listed_without_being_loaded_and_loaded_by_its_first_call(models: Path) -> None:
    async with on_demand(models) as (server, client):
        described = await client.model("a")
        assert (described.model.name, described.model.precision, described.takes_texts) == ("a", "", True)
        assert await states_of(client) == ON_DISK
        for service in ("", "headwaiter.v1.Encoder/a"):
            assert await health_of(server, service) == health_pb2.HealthCheckResponse.SERVING
        result = await client.encode(["fresh bread"], model="a", timeout_s=30)
        assert (result.model.name, result.model.precision) == ("a", "fp32")
        assert result.model.digest == described.model.digest
        assert (await client.model("a")).execution.self_check.sequences > 0
        assert await states_of(client) == {**ON_DISK, ("a", "1"): "ready"}
        (listed,) = (each for each in await client.models() if each.name == "a")
        assert (listed.loads, listed.evictions) == (1, 0)
        assert 0 < listed.loading_s < 30
        url = metrics_url(server)
        assert await read_metric(url, "headwaiter_model_loads_total", model="a") == 1
        assert await read_metric(url, "headwaiter_model_loading_seconds_total", model="a") == listed.loading_s
        assert await read_metric(url, "headwaiter_version_state", model="b", version="1", state="on_disk") == 1


async def test_every_door_loads_a_model(models: Path) -> None:
    async with on_demand(models, http_api="on") as (server, client), calling(server) as caller:
        assert (await client.tokenize(["fresh bread"], model="a")).model.name == "a"
        assert (await post(server, "/v1/embeddings", model="b", input="fresh bread"))["model"] == "b"
        assert (await caller.ModelReady(oip.ModelReadyRequest(name="c"))).ready
        assert (await caller.ModelMetadata(oip.ModelMetadataRequest(name="c"))).versions == ["1"]
        assert not (await caller.ModelStatistics(oip.ModelStatisticsRequest(name="c"))).model_stats
        assert (await states_of(client))["c", "1"] == "on_disk"
        reply = await caller.ModelInfer(raw_request("c", texts=["fresh bread"]))
        assert (reply.model_name, reply.model_version) == ("c", "1")
        assert set((await states_of(client)).values()) == {"ready"}


async def test_a_load_goes_on_after_the_deadline_of_its_first_call(models: Path) -> None:
    async with on_demand(models) as (server, client):
        with paused_loads() as goes_on:
            with pytest.raises(DeadlineExceeded):
                await client.encode(["fresh bread"], model="a", timeout_s=0.3)
            async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
                encode: Any = channel.unary_unary("/headwaiter.v1.Encoder/Encode")
                request = pb.EncodeRequest(model="a", texts=pb.Texts(values=["bread"]), timeout_s=0.3)
                with pytest.raises(grpc.aio.AioRpcError, match=r"timeout_s of 0\.3 s") as late:
                    await encode(request.SerializeToString(), timeout=30)
                assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            assert (await states_of(client))["a", "1"] == "loading"
            later = [asyncio.create_task(client.encode(["bread"], model="a", timeout_s=30)) for _ in range(5)]
            goes_on.set()
            await asyncio.gather(*later)
        (listed,) = (each for each in await client.models() if each.name == "a")
        assert listed.loads == 1


async def test_the_bytes_that_wait_for_a_load_are_limited(models: Path) -> None:
    size = 4000
    async with on_demand(models, max_request_bytes=size) as (_, client):
        with paused_loads() as goes_on:
            calls = [
                asyncio.create_task(client.encode(["b" * (size - 100)], model="a", timeout_s=30, truncation="right"))
                for _ in range(50)
            ]
            done, _ = await asyncio.wait(calls, timeout=0.5)
            goes_on.set()
            assert {type(each.exception()) for each in done} == {Overloaded}
            # One connection may hold half of what two requests for each thread, and four beside, may have.
            assert len(calls) - len(done) == THREADS + 4
            await asyncio.gather(*(call for call in calls if call not in done))


async def test_the_least_recently_used_model_leaves(models: Path) -> None:
    async with on_demand(models, fit=2) as (server, client):
        vectors = {}
        for name in ("a", "b", "a", "c"):
            # A model stays at least as long as its load took.
            await asyncio.sleep(max(each.loading_s for each in await client.models()))
            vectors[name] = (await client.encode(["fresh bread"], model=name, timeout_s=30)).pooled
        await wait_for_state(client, ("b", "1"), "on_disk")
        assert await states_of(client) == {("a", "1"): "ready", ("b", "1"): "on_disk", ("c", "1"): "ready"}
        assert await read_metric(metrics_url(server), "headwaiter_model_evictions_total", model="b") == 1
        again = await client.encode(["fresh bread"], model="b", timeout_s=30)
        np.testing.assert_array_equal(again.pooled, vectors["b"])
        # The cost of the batches was learnt before.
        assert (await client.model("b")).execution.cost.remembered
        assert (await states_of(client))["a", "1"] == "on_disk"


async def test_a_pinned_model_is_loaded_at_the_start_and_stays(models: Path) -> None:
    (models / "a" / "settings.json").write_text('{"load": "at-start"}')
    async with on_demand(models, fit=2) as (_, client):
        assert await states_of(client) == {**ON_DISK, ("a", "1"): "ready"}
        for name in ("b", "c", "b", "c"):
            await client.encode(["bread"], model=name, timeout_s=30)
        listed = {each.name: each for each in await client.models() if each.state == "ready"}
        assert listed.keys() == {"a", "c"}
        assert (listed["a"].loads, listed["a"].evictions) == (1, 0)
        assert (listed["c"].loads, listed["c"].evictions) == (2, 1)


async def test_a_new_version_of_an_unloaded_model_answers_the_next_call(models: Path, text_bundle: Path) -> None:
    async with on_demand(models) as (_, client):
        add_version(models / "a" / "2", text_bundle)
        assert (await client.encode(["bread"], model="a", timeout_s=30)).model.version == "2"
        shutil.rmtree(models / "b")
        with pytest.raises(ModelNotFound):
            await client.encode(["bread"], model="b", timeout_s=30)


@pytest.mark.parametrize("corrupt", [False, True])
async def test_a_new_version_takes_the_place_of_the_old_one_if_only_one_fits(
    corrupt: bool, models: Path, text_bundle: Path
) -> None:
    async with on_demand(models, fit=1, model_control="on") as (_, client):
        assert (await client.encode(["bread"], model="a", timeout_s=30)).model.version == "1"
        add_version(models / "a" / "2", text_bundle, corrupt=corrupt)
        if corrupt:
            with pytest.raises(ModelNotFound, match=r"packed-cpu\.fp32\.onnx"):
                await client.load("a")
        else:
            assert (await client.load("a")).version == "2"
        version = "1" if corrupt else "2"
        assert (await client.encode(["bread"], model="a", timeout_s=30)).model.version == version
        states = await states_of(client)
        assert states["a", version] == "ready"
        assert states.get(("a", "2")) == ("failed" if corrupt else "ready")


async def test_a_drain_refuses_the_callers_of_a_model_that_is_being_loaded(models: Path) -> None:
    async with on_demand(models) as (server, client):
        with paused_loads() as goes_on:
            call = asyncio.create_task(client.encode(["bread"], model="a", timeout_s=30))
            await wait_for_state(client, ("a", "1"), "loading")
            stop = asyncio.create_task(server.drain())
            with pytest.raises(Unavailable):
                await call
            goes_on.set()
            await stop


async def test_a_model_that_cannot_be_loaded_is_not_loaded_for_each_call(models: Path, text_bundle: Path) -> None:
    graph = models / "a" / "1" / "packed-cpu.fp32.onnx"
    graph.write_bytes(b"not a graph")
    attempts = 0

    def counting_load(*arguments: Any) -> Any:
        nonlocal attempts
        attempts += 1
        return load_model(*arguments)

    with patch.object(versions, "load_model", counting_load), patch.object(versions, "_RETRY_S", 1.0):
        async with on_demand(models) as (_, client):
            calls = (client.encode(["bread"], model="a", timeout_s=30) for _ in range(20))
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert {type(each) for each in results} == {ModelNotFound}
            assert all("packed-cpu.fp32.onnx" in str(each) for each in results)
            assert attempts == 1
            (failed,) = (each for each in await client.models() if each.name == "a")
            assert (failed.state, "packed-cpu.fp32.onnx" in failed.reason) == ("failed", True)
            await wait_for_state(client, ("a", "1"), "on_disk")
            with pytest.raises(ModelNotFound, match=r"packed-cpu\.fp32\.onnx"):
                await client.encode(["bread"], model="a", timeout_s=30)
            assert attempts == 2
            shutil.copyfile(text_bundle / graph.name, graph)
            await wait_for_state(client, ("a", "1"), "on_disk")
            assert (await client.encode(["bread"], model="a", timeout_s=30)).model.version == "1"


async def test_an_operator_loads_and_unloads_models_that_are_loaded_on_demand(models: Path) -> None:
    async with on_demand(models, model_control="on") as (_, client):
        assert (await client.load("a")).version == "1"
        for name in ("a", "b"):
            await client.unload(name)
            with pytest.raises(ModelNotFound):
                await client.encode(["bread"], model=name, timeout_s=30)
        assert (await client.load("b")).version == "1"
        assert (await client.encode(["bread"], model="b")).model.version == "1"


async def test_a_storm_over_more_models_than_fit_fails_no_call(models: Path, text_bundle: Path) -> None:
    names = [*NAMES, "d"]
    add_version(models / "d" / "1", text_bundle)
    async with on_demand(models, fit=2) as (_, client):
        expected = (await client.encode(["bread"], model="a", timeout_s=30)).pooled

        async def call(number: int) -> None:
            chosen = random.Random(number)
            for _ in range(10):
                name = chosen.choice(names)
                result = await client.encode(["bread"], model=name, timeout_s=60)
                assert result.model.name == name
                np.testing.assert_array_equal(result.pooled, expected)

        await asyncio.gather(*map(call, range(8)))
        states = await states_of(client)
        assert sum(state == "ready" for state in states.values()) <= 2
