"""Both clients over real gRPC, with a fake server."""

import asyncio
from typing import Any

import grpc
import numpy as np
import pytest
from google.rpc.error_details_pb2 import ErrorInfo

from headwaiter_client import AsyncClient, Batch, DeadlineExceeded, ModelRef, ModelVersion, RetryPolicy
from headwaiter_client.transport.connection import CHANNEL_OPTIONS
from headwaiter_proto import encoder_pb2 as pb
from tests.support.client.both_clients import open_client
from tests.support.client.fake_server import LOADED, MODEL, Call, FakeServer


def test_texts_are_encoded(call: Call, server: FakeServer) -> None:
    result = call(server, "encode", ["one two", "three"], request_id="r")
    assert result.pooled.tolist() == [[0, 0, 0], [0.5, 0.5, 0.5]]
    assert not hasattr(result, "hidden")
    assert result.lengths.tolist() == [4, 3]
    assert result.request_id == "r"
    assert result.timings.round_trip_s > 0
    assert server.requests == [
        pb.EncodeRequest(
            request_id="r",
            texts=pb.Texts(values=["one two", "three"]),
            output=pb.OutputOptions(dtype=pb.DATA_TYPE_FLOAT32),
            priority=pb.PRIORITY_INTERACTIVE,
            truncation=pb.TRUNCATION_ERROR,
        )
    ]


def test_attend_returns_the_weights_of_a_text_for_each_layer_and_head(call: Call, server: FakeServer) -> None:
    result = call(
        server, "attend", "one two", layers=[1], heads=(2, 0), query=3, model="tiny", model_version="2", request_id="r"
    )
    assert (result.weights.shape, result.context.shape) == ((1, 2, 4, 4), (1, 2, 2))
    np.testing.assert_allclose(result.weights[0, 1, 0], np.array([2, 3, 4, 5]) / 14)
    assert result.context.tolist() == [[[2, 2], [0, 0]]]
    assert result.tokens == ["[CLS]", "one", "two", "[SEP]"]
    assert (result.model, result.request_id) == (ModelRef(MODEL.name, MODEL.digest), "r")
    assert result.timings.compute_s == 4
    assert result.timings.round_trip_s > 0
    assert server.requests == [
        pb.AttendRequest(
            model="tiny",
            model_version="2",
            request_id="r",
            texts=pb.Texts(values=["one two"]),
            layers=[1],
            heads=[2, 0],
            query=3,
        )
    ]


def test_models_are_listed(call: Call, server: FakeServer) -> None:
    assert call(server, "models") == [ModelVersion(MODEL.name, "", "ready", digest=MODEL.digest)]


def test_batches_are_listed_of_all_models_or_of_one(call: Call, server: FakeServer) -> None:
    expected = [
        Batch("tiny", "2", (5, 3), (0, 0), ended_s_ago=2, predicted_s=0.25, measured_s=0.5),
        Batch("tiny", "2", (7,), (1,), ended_s_ago=1, predicted_s=0.5, measured_s=0.25),
    ]
    assert call(server, "batches") == expected
    assert call(server, "batches", "tiny", timeout_s=60) == expected
    assert 50 < server.remaining_s < 61
    assert server.requests == [pb.ListBatchesRequest(), pb.ListBatchesRequest(model="tiny")]


def test_a_model_is_loaded_and_unloaded_by_name(call: Call, server: FakeServer) -> None:
    assert call(server, "load", "tiny", timeout_s=60) == ModelRef("tiny", LOADED.digest, "fp16", "2")
    assert 50 < server.remaining_s < 61
    assert call(server, "unload", "tiny") is None
    assert server.requests == [pb.LoadModelRequest(name="tiny"), pb.UnloadModelRequest(name="tiny")]


def test_model_returns_the_servers_description(call: Call, server: FakeServer) -> None:
    server.description = pb.GetModelResponse(model=MODEL, max_tokens=512)
    assert call(server, "model", "tiny").message == server.description
    assert call(server, "model", "tiny", version="2").message == server.description
    assert server.requests == [pb.GetModelRequest(name="tiny"), pb.GetModelRequest(name="tiny", version="2")]


def test_is_serving_asks_the_standard_health_service(call: Call, server: FakeServer) -> None:
    assert call(server, "is_serving") is True
    server.serving = False
    assert call(server, "is_serving") is False
    server.serving = True
    server.released.clear()
    assert call(server, "is_serving", timeout_s=0.3) is False
    server.stop()
    assert call(server, "is_serving") is False


def test_replies_may_have_any_size(call: Call, server: FakeServer) -> None:
    result = call(server, "encode_features", [np.ones((500_000, 1), np.float16)], hidden=True)
    assert result.hidden[0].nbytes == 6_000_000


@pytest.mark.parametrize("method", ["encode", "models", "model", "is_serving"])
def test_every_call_sends_the_token_and_the_metadata(call: Call, server: FakeServer, method: str) -> None:
    arguments = [["a"]] if method == "encode" else []
    call(server, method, *arguments, connect={"token": "s3cret", "metadata": {"x-tenant": "a b"}})
    assert (server.metadata["authorization"], server.metadata["x-tenant"]) == ("Bearer s3cret", "a b")


def test_a_retry_tells_the_server_how_often_a_device_failed_on_the_request(call: Call, server: FakeServer) -> None:
    server.refuse(grpc.StatusCode.UNAVAILABLE, "dead", ErrorInfo(reason="DEVICE_FAILED", domain="headwaiter"))
    server.refusals_left = 2
    server.refuses_health_checks = False
    call(server, "encode", ["a"], connect={"token": "s3cret", "retry": RetryPolicy()})
    assert (server.metadata.get("headwaiter-device-failures"), len(server.requests)) == ("2", 3)
    assert server.metadata["authorization"] == "Bearer s3cret"
    server.refuse(grpc.StatusCode.UNAVAILABLE, "starting", ErrorInfo(reason="UNAVAILABLE", domain="headwaiter"))
    server.refusals_left = 1
    call(server, "encode", ["a"], connect={"retry": RetryPolicy()})
    assert ("headwaiter-device-failures" in server.metadata, len(server.requests)) == (False, 5)


def test_a_client_without_a_token_sends_no_authorization(call: Call, server: FakeServer) -> None:
    call(server, "models")
    assert "authorization" not in server.metadata


@pytest.mark.parametrize("token", ["", "two words", "line\n", "tökén"])
def test_a_token_that_headers_cannot_hold_is_refused_and_not_shown(call: Call, server: FakeServer, token: str) -> None:
    with pytest.raises(ValueError, match="token") as refused:
        call(server, "models", connect={"token": token})
    assert not token or token not in str(refused.value)


@pytest.mark.parametrize(
    ("client_timeout_s", "call_timeout_s", "limit_s"),
    [(None, None, 30.0), (7.0, None, 7.0), (7.0, 3.0, 3.0), (7.0, 20.0, 20.0)],
)
def test_every_call_sends_a_deadline(
    call: Call, server: FakeServer, client_timeout_s: float | None, call_timeout_s: float | None, limit_s: float
) -> None:
    connect = {} if client_timeout_s is None else {"timeout_s": client_timeout_s}
    call(server, "encode", ["a"], timeout_s=call_timeout_s, connect=connect)
    assert 0 < server.remaining_s < limit_s + 1  # gRPC rounds deadlines up when it sends them.


@pytest.mark.parametrize("method", ["encode", "attend"])
def test_a_call_ends_at_its_deadline(call: Call, server: FakeServer, method: str) -> None:
    server.released.clear()
    with pytest.raises(DeadlineExceeded) as late:
        call(server, method, "a", timeout_s=0.2, request_id="r")
    assert late.value.request_id == "r"
    assert "0.2 s" in str(late.value)


def test_a_request_whose_deadline_has_passed_is_not_sent(call: Call, server: FakeServer) -> None:
    with pytest.raises(DeadlineExceeded):
        call(server, "encode", ["a"] * 33, timeout_s=1e-9)
    assert not any(isinstance(request, pb.EncodeRequest) for request in server.requests)


def test_keepalive_pings_are_rarer_than_servers_allow() -> None:
    assert dict(CHANNEL_OPTIONS)["grpc.keepalive_time_ms"] > 10_000


async def test_threads_or_tasks_share_a_client(client_class: Any, server: FakeServer) -> None:
    async with open_client(client_class, server.address) as client:
        results = await asyncio.gather(*(client.encode_tokens([[1] * count]) for count in range(1, 33)))
    assert [result.lengths.tolist() for result in results] == [[count] for count in range(1, 33)]


async def test_cancelling_a_task_cancels_its_call_on_the_server(server: FakeServer) -> None:
    server.released.clear()
    async with AsyncClient(server.address) as client:
        call = asyncio.create_task(client.encode(["a"]))
        await asyncio.to_thread(server.entered.wait)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await asyncio.to_thread(server.cancelled.wait, 30)
