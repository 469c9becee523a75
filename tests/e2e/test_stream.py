"""Requests of an EncodeStream over real gRPC that are cancelled or late never run."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from headwaiter_client import AsyncClient
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_server.app import Server
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
