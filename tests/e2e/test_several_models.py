"""A server of several models answers with each, replaces versions without a failed call, and refuses bad versions."""

import asyncio
import json
import os
import shutil
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headwaiter_client import (
    AsyncClient,
    DeadlineExceeded,
    InvalidInput,
    ModelNotFound,
    SequenceTooLong,
    Unavailable,
    Unimplemented,
)
from headwaiter_server.app import Server
from headwaiter_server.models import versions
from headwaiter_server.models.loading import LoadedModel, load_model
from headwaiter_server.runtime import model
from headwaiter_server.runtime.errors import ModelRefused
from tests.support.e2e.in_process_server import (
    connect,
    in_this_process,
    local_settings,
    metrics_url,
    paused_device,
    post,
    serving,
    wait_until,
)
from tests.support.e2e.prometheus_metrics import metrics_page, read_metric

FEATURES = np.ones((3, 6), np.float32)


@pytest.fixture
def models(tmp_path: Path, text_bundle: Path, feature_bundle: Path) -> Path:
    """A folder of the models "texts" and "features", in one version each."""
    folder = tmp_path / "models"
    add_version(folder / "texts" / "1", text_bundle)
    add_version(folder / "features" / "1", feature_bundle)
    return folder


_COPIES = count()


def add_version(folder: Path, bundle: Path, *, corrupt: bool = False) -> None:
    """Copy a bundle into a folder, which appears complete, and give the bundle a digest of its own."""
    hidden = folder.with_name(f".{folder.name}")
    shutil.copytree(bundle, hidden)
    manifest = json.loads((hidden / "manifest.json").read_text())
    manifest["name"] = f"copy-{next(_COPIES)}"
    (hidden / "manifest.json").write_text(json.dumps(manifest))
    if corrupt:
        (hidden / "packed-cpu.fp32.onnx").write_bytes(b"not a graph")
    hidden.rename(folder)


@asynccontextmanager
async def serving_models(folder: Path, **changes: Any) -> AsyncIterator[Server]:
    async with serving(None, models=folder, **changes) as server:
        yield server


async def health_of(server: Server, service: str) -> int:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        reply = await stub.Check(health_pb2.HealthCheckRequest(service=service))
        return int(reply.status)


async def states_of(client: AsyncClient) -> dict[tuple[str, str], str]:
    return {(each.name, each.version): each.state for each in await client.models()}


async def wait_for_state(client: AsyncClient, version: tuple[str, str], state: str | None) -> None:
    """Wait until a version has a state; None waits until the version is gone."""
    async with asyncio.timeout(30):
        while (await states_of(client)).get(version) != state:  # noqa: ASYNC110 - the state is on the server
            await asyncio.sleep(0.01)


async def wait_for_models(client: AsyncClient, count: int) -> None:
    """Wait until the server lists `count` versions."""
    async with asyncio.timeout(30):
        while len(await client.models()) != count:  # noqa: ASYNC110 - the state is on the server
            await asyncio.sleep(0.01)


@contextmanager
def paused_loads() -> Iterator[threading.Event]:
    """Let loads wait until the event is set."""
    goes_on = threading.Event()

    def load_later(*arguments: Any) -> LoadedModel:
        goes_on.wait(30)
        return load_model(*arguments)

    with patch.object(versions, "load_model", load_later):
        try:
            yield goes_on
        finally:
            goes_on.set()


async def test_each_model_answers_as_it_does_alone(models: Path, text_bundle: Path, feature_bundle: Path) -> None:
    async with serving(text_bundle) as server, connect(server) as client:
        text = (await client.encode(["fresh bread"])).pooled
    async with serving(feature_bundle) as server, connect(server) as client:
        features = (await client.encode_features([FEATURES])).pooled
    async with serving_models(models) as server, connect(server) as client:
        results = await asyncio.gather(
            client.encode(["fresh bread"], model="texts"), client.encode_features([FEATURES], model="features")
        )
        assert [(each.model.name, each.model.version) for each in results] == [("texts", "1"), ("features", "1")]
        np.testing.assert_array_equal(results[0].pooled, text)
        np.testing.assert_array_equal(results[1].pooled, features)


async def test_texts_over_http_mean_the_only_model_of_texts(models: Path) -> None:
    async with serving_models(models, http_api="on") as server:
        assert (await post(server, "/v1/embeddings", input="fresh bread"))["model"] == "texts"


async def test_a_new_version_takes_over_and_removing_it_goes_back(models: Path, text_bundle: Path) -> None:
    add_version(models / "texts" / "10", text_bundle)
    async with serving_models(models, model_control="on") as server, connect(server) as client:
        assert (await client.encode(["bread"], model="texts")).model.version == "10"
        add_version(models / "texts" / "11", text_bundle)
        assert not (await client.model("texts")).execution.cost.remembered
        assert (await client.load("texts")).version == "11"
        assert (await client.encode(["bread"], model="texts")).model.version == "11"
        # The graph is the same, so its cost is not measured beside the calls in progress.
        assert (await client.model("texts")).execution.cost.remembered
        shutil.rmtree(models / "texts" / "11")
        assert (await client.load("texts")).version == "10"
        assert (await client.encode(["bread"], model="texts")).model.version == "10"
        # The version is unloaded in the background.
        await wait_until(client, lambda: 'version="11"' not in metrics_page(metrics_url(server)))


async def test_a_version_that_runs_on_the_cpu_like_its_predecessor_has_a_reason_of_its_own(
    models: Path, text_bundle: Path
) -> None:
    async with serving_models(models, provider="auto", model_control="on") as server, connect(server) as client:
        reason = (await client.model("texts")).execution.fallback_reason
        assert reason
        add_version(models / "texts" / "2", text_bundle)
        assert (await client.load("texts")).version == "2"
        assert (await client.model("texts")).execution.fallback_reason == reason
        labels = {"model": "texts", "version": "2"}
        assert await read_metric(metrics_url(server), "headwaiter_provider_fallback", **labels) == 1


async def test_a_version_that_is_missing_for_a_while_does_not_give_way_to_a_lower_one(
    models: Path, text_bundle: Path
) -> None:
    add_version(models / "texts" / "2", text_bundle)
    async with serving_models(models, model_control="on") as server, connect(server) as client:
        with paused_loads() as goes_on:
            away = (models / "texts" / "2").rename(models / "texts" / ".away")
            load = asyncio.create_task(client.load("texts"))
            await wait_for_state(client, ("texts", "1"), "loading")
            away.rename(models / "texts" / "2")
            goes_on.set()
            assert (await load).version == "2"
        assert (await client.encode(["bread"], model="texts")).model.version == "2"
        assert await states_of(client) == {("features", "1"): "ready", ("texts", "2"): "ready"}


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("2/packed-cpu.fp32.onnx", "not a graph", r"2.*packed-cpu\.fp32\.onnx"),
        ("settings.json", '{"precision": "fp64"}', r"settings\.json.*fp64"),
        # The content None stands for a pipe, which a server must not wait for.
        ("settings.json", None, "not a regular file"),
        ("2/manifest.json", None, "not a regular file"),
    ],
)
async def test_a_bad_version_is_reported_and_the_old_one_goes_on(
    file: str, content: str | None, message: str, models: Path, text_bundle: Path
) -> None:
    async with serving_models(models, model_control="on") as server, connect(server) as client:
        add_version(models / "texts" / "2", text_bundle)
        bad = models / "texts" / file
        bad.unlink(missing_ok=True)
        if content is None:
            os.mkfifo(bad)
        else:
            bad.write_text(content)
        with pytest.raises(ModelNotFound, match=message) as refused:
            await client.load("texts")
        assert str(models) not in str(refused.value)
        assert (await client.encode(["bread"], model="texts")).model.version == "1"
        assert (await states_of(client))["texts", "2"] == "failed"
        assert await health_of(server, "headwaiter.v1.Encoder/texts") == health_pb2.HealthCheckResponse.SERVING
        await client.unload("features")
        assert (await client.load("features")).version == "1"


class Panic(BaseException):
    """Stands in for a panic in Rust, which is no Exception either."""


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (patch.object(versions, "load_model", side_effect=Panic("index out of bounds")), "Panic"),
        (
            patch.object(model, "available_bytes", lambda: 1000),
            "MiB for its weights.* MiB for its longest sequence.*0 MiB are available",
        ),
    ],
    ids=["panic", "memory"],
)
async def test_a_failed_load_can_be_repeated(broken: Any, message: str, models: Path, text_bundle: Path) -> None:
    async with serving_models(models, model_control="on") as server, connect(server) as client:
        add_version(models / "texts" / "2", text_bundle)
        with broken, pytest.raises(ModelNotFound, match=message):
            await client.load("texts")
        assert (await client.encode(["bread"], model="texts")).model.version == "1"
        assert (await client.load("texts")).version == "2"


async def test_a_removed_model_is_unloaded_after_two_looks(models: Path) -> None:
    async with serving_models(models, watch_s=0.02) as server, connect(server) as client:
        shutil.rmtree(models / "texts")
        await wait_for_state(client, ("texts", "1"), None)
        assert await states_of(client) == {("features", "1"): "ready"}


async def test_load_and_unload_need_a_name_and_the_consent_of_the_operator(models: Path) -> None:
    async with serving_models(models, model_control="on", default_model="texts") as server, connect(server) as client:
        for call in (client.load, client.unload):
            with pytest.raises(InvalidInput) as refused:
                await call("")
            assert refused.value.field == "name"
        assert (await client.encode(["bread"])).model.name == "texts"
    async with serving_models(models) as server, connect(server) as client:
        for call in (client.load, client.unload):
            with pytest.raises(Unimplemented, match="--model-control"):
                await call("texts")


async def test_a_slow_load_delays_neither_unloads_nor_other_looks(models: Path, text_bundle: Path) -> None:
    async with serving_models(models, model_control="on") as server, connect(server) as client:
        add_version(models / "texts" / "2", text_bundle)
        with paused_loads() as goes_on:
            loads = [asyncio.create_task(client.load("texts")) for _ in range(20)]
            await wait_for_state(client, ("texts", "2"), "loading")
            await client.unload("features")
            with pytest.raises(ModelNotFound):
                await client.encode_features([FEATURES], model="features")
            assert (await client.encode(["bread"], model="texts")).model.version == "1"
            goes_on.set()
            assert {each.version for each in await asyncio.gather(*loads)} == {"2"}


async def test_a_model_that_is_unloaded_during_its_load_is_not_served(models: Path, text_bundle: Path) -> None:
    async with serving_models(models, model_control="on") as server, connect(server) as client:
        add_version(models / "texts" / "2", text_bundle)
        with paused_loads() as goes_on:
            load = asyncio.create_task(client.load("texts"))
            await wait_for_state(client, ("texts", "2"), "loading")
            await client.unload("texts")
            goes_on.set()
            with pytest.raises(ModelNotFound):
                await load
        with pytest.raises(ModelNotFound):
            await client.encode(["bread"], model="texts")


async def test_each_caller_of_a_failed_load_is_told(models: Path, text_bundle: Path) -> None:
    async with serving_models(models, model_control="on") as server, connect(server) as client:
        add_version(models / "texts" / "2", text_bundle, corrupt=True)
        loads = []
        for _ in range(10):
            loads.append(asyncio.create_task(client.load("texts")))
            await asyncio.sleep(0.02)
        results = await asyncio.gather(*loads, return_exceptions=True)
        assert {type(each) for each in results} == {ModelNotFound}


async def test_a_caller_whose_load_ends_with_the_server_is_told_to_try_another(models: Path, text_bundle: Path) -> None:
    async with serving_models(models, model_control="on") as server, connect(server) as client:
        add_version(models / "texts" / "2", text_bundle)
        with paused_loads() as goes_on:
            load = asyncio.create_task(client.load("texts"))
            await wait_for_state(client, ("texts", "2"), "loading")
            stop = asyncio.create_task(server.drain())
            with pytest.raises(Unavailable, match="shutting down"):
                await load
            goes_on.set()
            await stop


async def test_unloaded_models_are_gone_and_a_server_without_its_default_model_is_not_ready(models: Path) -> None:
    serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
    async with serving_models(models, model_control="on", default_model="texts") as server, connect(server) as client:

        async def health() -> list[int]:
            services = ("", "headwaiter.v1.Encoder/texts", "headwaiter.v1.Encoder/features")
            return [await health_of(server, service) for service in services]

        assert await health() == [serving, serving, serving]
        await client.unload("texts")
        assert await health() == [not_serving, not_serving, serving]
        with pytest.raises(ModelNotFound):
            await client.encode(["bread"], model="texts")
        assert (await client.encode_features([FEATURES], model="features")).model.name == "features"
        await client.load("texts")
        assert (await client.encode(["bread"])).model.name == "texts"
        await client.unload("features")
        assert await health() == [serving, serving, not_serving]
        await client.unload("texts")
        assert await health() == [not_serving, not_serving, not_serving]


async def test_no_call_fails_while_versions_change_under_load(models: Path, text_bundle: Path) -> None:
    current = ["1"]
    async with serving_models(models, watch_s=0.05) as server, connect(server) as client:
        done = asyncio.Event()

        async def call() -> int:
            answered = 0
            while not done.is_set():
                first = len(current) - 1
                version = (await client.encode(["bread", "fresh bread"], model="texts")).model.version
                assert version in [*current[first:], str(len(current) + 1)]
                answered += 1
            return answered

        calls = [asyncio.create_task(call()) for _ in range(4)]
        for version in ("2", "3", "4"):
            add_version(models / "texts" / version, text_bundle)
            async with asyncio.timeout(60):
                while (await client.encode(["bread"], model="texts")).model.version != version:
                    pass
            current.append(version)
        done.set()
        assert all(await asyncio.gather(*calls))
        await wait_for_models(client, 2)
        assert await states_of(client) == {("features", "1"): "ready", ("texts", "4"): "ready"}


async def test_a_server_without_a_single_good_model_does_not_start(tmp_path: Path, text_bundle: Path) -> None:
    add_version(tmp_path / "models" / "texts" / "1", text_bundle, corrupt=True)
    with in_this_process(), pytest.raises(ModelRefused, match=r"texts.*packed-cpu\.fp32\.onnx"):
        await Server(local_settings(None, models=tmp_path / "models")).start()


async def test_a_server_without_any_version_says_where_to_make_one_and_what_is_ignored(
    tmp_path: Path, text_bundle: Path, caplog: pytest.LogCaptureFixture
) -> None:
    add_version(tmp_path / "models" / "texts" / "v1", text_bundle)
    (tmp_path / "models" / "texts" / "2").mkdir()
    with in_this_process(), pytest.raises(ModelRefused, match=f"^{tmp_path / 'models'} has no bundle"):
        await Server(local_settings(None, models=tmp_path / "models")).start()
    ignored = {record.args[0] for record in caplog.records if isinstance(record.args, tuple) and record.args}
    assert ignored >= {"texts/v1", "texts/2"}


async def test_a_model_may_have_settings_of_its_own(models: Path) -> None:
    (models / "texts" / "settings.json").write_text('{"precision": "int8", "max_sequence_tokens": 5}')
    async with serving_models(models, model_control="on") as server, connect(server) as client:
        description = await client.model("texts")
        assert (description.model.precision, description.max_tokens) == ("int8", 5)
        assert (await client.model("features")).max_tokens == 48
        with pytest.raises(SequenceTooLong) as refused:
            await client.encode_tokens([[1] * 6], model="texts")
        assert (refused.value.limit, refused.value.actual) == (5, 6)


async def test_a_load_goes_on_when_its_caller_has_gone(models: Path, text_bundle: Path) -> None:
    async with serving_models(models, model_control="on") as server, connect(server) as client:
        add_version(models / "texts" / "2", text_bundle)
        with paused_loads() as goes_on:
            with pytest.raises(DeadlineExceeded):
                await client.load("texts", timeout_s=0.2)
            goes_on.set()
            await wait_for_state(client, ("texts", "2"), "ready")
        assert (await client.encode(["bread"], model="texts")).model.version == "2"


async def test_a_model_that_was_reloaded_with_other_settings_keeps_its_metrics(models: Path) -> None:
    async with serving_models(models, model_control="on") as server, connect(server) as client:
        (models / "texts" / "settings.json").write_text('{"token_budget": 64}')
        await client.load("texts")
        await wait_for_models(client, 2)
        await client.encode(["bread"], model="texts")
        page = await asyncio.to_thread(metrics_page, metrics_url(server))
        assert 'headwaiter_batch_sequences_count{model="texts",version="1"} 1.0' in page.splitlines()


async def test_a_model_may_be_loaded_again_while_it_still_answers(models: Path) -> None:
    with paused_device() as device:
        device.resume()
        async with serving_models(models, model_control="on") as server, connect(server) as client:
            device.pause()
            request = asyncio.create_task(client.encode(["bread"], model="texts"))
            await device.wait_for_batch()
            await client.unload("texts")
            with pytest.raises(ModelNotFound):
                await client.encode(["bread"], model="texts")
            device.resume()
            await client.load("texts")
            assert (await request).model.version == "1"
            assert (await client.encode(["bread"], model="texts")).model.version == "1"
