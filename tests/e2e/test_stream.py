"""EncodeStream over real gRPC: order of replies, failures, cancellation, deadlines, drain and the call limit."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from headwaiter_client import AsyncClient, Overloaded
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_server.app import Server
from tests.support.e2e.bad_requests import HALF_EMOJI
from tests.support.e2e.grpc_errors import code_of
from tests.support.e2e.in_process_server import connect, metrics_url, paused_device, serving, wait_until
from tests.support.e2e.prometheus_metrics import metric_value, read_metric


@asynccontextmanager
async def streaming(bundle: Path, **changes: Any) -> AsyncIterator[tuple[Server, AsyncClient, Any]]:
    """Start a server; yield the server, a client, and the gRPC method that opens a stream."""
    async with (
        serving(bundle, **changes) as server,
        connect(server) as client,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        open_stream: Any = channel.stream_stream(
            "/headwaiter.v1.Encoder/EncodeStream",
            request_serializer=pb.EncodeRequest.SerializeToString,
            response_deserializer=pb.EncodeStreamResponse.FromString,
        )
        yield server, client, open_stream


def request(request_id: str, length: int, **fields: Any) -> pb.EncodeRequest:
    tokens = pb.TokenSequences(dtype=pb.DATA_TYPE_INT32, data=bytes(4 * length), lengths=[length])
    return pb.EncodeRequest(request_id=request_id, tokens=tokens, **fields)


def pooled(response: pb.EncodeResponse) -> Any:
    return np.frombuffer(response.pooled.data, "<f4").reshape(tuple(response.pooled.shape))


async def test_half_an_emoji_fails_alone_and_the_stream_goes_on(text_bundle: Path) -> None:
    def raw(request_id: str, *texts: str, **fields: Any) -> bytes:
        request = pb.EncodeRequest(request_id=request_id, texts=pb.Texts(values=texts), **fields)
        return request.SerializeToString().replace(b"xxx", HALF_EMOJI)

    sent = [
        raw("good", "bread", "rain"),
        raw("whole", "bread", "fresh xxx"),
        raw("partial", "bread", "fresh xxx", "rain", partial=True),
        raw("later", "bread", "rain"),
    ]
    async with serving(text_bundle) as server, grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        # Without serializers, messages are bytes.
        call: Any = channel.stream_stream("/headwaiter.v1.Encoder/EncodeStream")
        received = [pb.EncodeStreamResponse.FromString(message) async for message in call(sent)]
    answers = {each.request_id: each for each in received}
    assert len(answers) == len(received) == len(sent)
    error = answers["whole"].error
    assert (error.reason, error.code) == (pb.INVALID_INPUT, grpc.StatusCode.INVALID_ARGUMENT.value[0])
    assert error.metadata == {"sequence": "1", "field": "texts.values"}
    partial_reply = answers["partial"].response
    assert [(each.sequence, each.reason) for each in partial_reply.failures] == [(1, pb.INVALID_INPUT)]
    assert partial_reply.lengths[1] == 0
    vectors = {name: pooled(answers[name].response) for name in ("good", "partial", "later")}
    np.testing.assert_allclose(vectors["partial"][[0, 2]], vectors["good"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(vectors["later"], vectors["good"], rtol=0, atol=1e-5)


async def test_requests_of_a_cancelled_or_expired_stream_leave_the_queue_and_never_run(text_bundle: Path) -> None:
    async with streaming(text_bundle) as (server, client, open_stream):
        with paused_device() as device:
            first = asyncio.create_task(client.encode_tokens([[1] * 3]))
            await device.wait_for_batch()
            for stop, code in (("cancel", "CANCELLED"), ("deadline", "DEADLINE_EXCEEDED")):
                call = open_stream(timeout=0.5 if stop == "deadline" else None)
                for number in range(3):
                    await call.write(request(str(number), 5))
                if stop == "cancel":
                    await wait_until(
                        client, lambda: metric_value(metrics_url(server), "headwaiter_queue_sequences") == 3
                    )
                    call.cancel()
                labels = {"method": "EncodeStream", "code": code}
                counted = partial(metric_value, metrics_url(server), "headwaiter_requests_total", **labels)
                await wait_until(client, lambda counted=counted: counted() == 3)  # type: ignore[misc]
                assert await read_metric(metrics_url(server), "headwaiter_queue_sequences") == 0
            device.resume()
            assert (await first).lengths.tolist() == [3]
        assert device.batch_lengths == [[3]]


async def test_a_request_whose_own_timeout_passes_fails_alone_and_never_runs(text_bundle: Path) -> None:
    async with streaming(text_bundle) as (server, client, open_stream):
        with paused_device() as device:
            first = asyncio.create_task(client.encode_tokens([[1] * 3]))
            await device.wait_for_batch()
            call = open_stream()
            await call.write(request("patient", 7))
            await call.write(request("hasty", 5, timeout_s=0.1))
            late = await call.read()
            assert (late.request_id, late.error.reason) == ("hasty", pb.DEADLINE_EXCEEDED)
            assert await read_metric(metrics_url(server), "headwaiter_expired_total") == 1
            device.resume()
            await call.done_writing()
            assert (await call.read()).response.request_id == "patient"
            await first
        assert device.batch_lengths == [[3], [7]]


async def test_a_drain_answers_the_requests_read_from_a_stream_and_ends_the_stream(text_bundle: Path) -> None:
    async with streaming(text_bundle) as (server, client, open_stream):
        with paused_device() as device:
            call = open_stream()
            await call.write(request("a", 3))
            await device.wait_for_batch()
            await call.write(request("b", 5))
            await wait_until(client, lambda: metric_value(metrics_url(server), "headwaiter_queue_sequences") == 1)
            draining = asyncio.create_task(server.drain())
            await asyncio.sleep(0)
            device.resume()
            assert [(await call.read()).response.request_id for _ in range(2)] == ["a", "b"]
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                await call.read()
            assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
            assert "shutting down" in str(ended.value.details())
            await draining


async def test_a_call_over_the_call_limit_is_refused_with_a_retry_delay(text_bundle: Path) -> None:
    async with streaming(text_bundle, max_calls=1) as (_, client, open_stream):
        call = open_stream()
        await call.write(request("a", 3))
        assert (await call.read()).HasField("response")
        with pytest.raises(Overloaded) as refused:
            await client.encode_tokens([[1]])
        assert (refused.value.retry_after_s, refused.value.limit) == (1.0, 1)
        assert code_of(refused.value) is grpc.StatusCode.RESOURCE_EXHAUSTED
        second = open_stream()
        assert await second.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert (await client.encode_tokens([[1]])).lengths.tolist() == [1]
