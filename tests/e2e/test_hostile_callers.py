"""Callers that stall, vanish or flood take nothing from other callers, and the server refuses them with an error."""

import asyncio
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import grpc
import psutil
import pytest

from headwaiter_client import HeadwaiterError, Overloaded
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_server import front_end
from headwaiter_server.app import Server
from headwaiter_server.inputs.tokenizer import BundleTokenizer, TokenizedText
from headwaiter_server.runtime.attention_weights import AttentionWeightsGraph
from tests.e2e.test_stream import request, streaming
from tests.support.e2e.in_process_server import (
    connect,
    metrics_url,
    one_front_end,
    paused_device,
    serving,
    wait_until,
)
from tests.support.e2e.prometheus_metrics import metric_value
from tests.support.e2e.raw_http2 import RawConnection

TIMEOUT_S = 20.0
SEQUENCES, SEQUENCE_TOKENS, WIDTH = 32, 64, 32
REPLY_BYTES = SEQUENCES * (SEQUENCE_TOKENS + 1) * WIDTH * 4
STREAM_REQUEST = pb.EncodeRequest(request_id="a", texts=pb.Texts(values=["bread"])).SerializeToString()


def hidden_request() -> bytes:
    """Return a request whose reply has REPLY_BYTES."""
    tokens = pb.TokenSequences(
        dtype=pb.DATA_TYPE_INT32, data=bytes(4 * SEQUENCES * SEQUENCE_TOKENS), lengths=[SEQUENCE_TOKENS] * SEQUENCES
    )
    output = pb.OutputOptions(pooled=True, hidden=True)
    return pb.EncodeRequest(tokens=tokens, output=output).SerializeToString()


def requests_total(server: Server, **labels: str) -> float:
    return metric_value(metrics_url(server), "headwaiter_requests_total", method="Encode", **labels)


async def test_replies_that_a_caller_does_not_read_are_bounded_and_others_are_answered(text_bundle: Path) -> None:
    calls = 12
    limits = {"front_ends": one_front_end(), "max_reply_bytes": 8 * REPLY_BYTES}
    async with serving(text_bundle, **limits) as server, connect(server) as client:
        with RawConnection(server.port, window_bytes=0) as first, RawConnection(server.port, window_bytes=0) as second:
            # The first connection gets half of the limit, and the second one half of the rest.
            for connection, sent, answered in ((first, calls, 4), (second, 2 * calls, 4 + 2)):
                for _ in range(calls):
                    await asyncio.to_thread(connection.call, "Encode", hidden_request())
                await wait_until(client, lambda sent=sent: requests_total(server) == sent)  # type: ignore[misc]
                assert await asyncio.to_thread(requests_total, server, code="OK") == answered
            assert await asyncio.to_thread(requests_total, server, code="RESOURCE_EXHAUSTED") == 2 * calls - 6
            assert (await client.encode(["bread"])).pooled is not None
        # A request of this size is only accepted once nobody holds anything.
        await until_admitted(lambda: client.encode_tokens([[1] * SEQUENCE_TOKENS] * 5 * SEQUENCES, hidden=True))


async def until_admitted(send: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            with suppress(Overloaded):
                await send()
                return


async def test_one_connection_cannot_hold_all_calls(text_bundle: Path) -> None:
    async with serving(text_bundle, front_ends=one_front_end(), max_calls=8) as server, connect(server) as client:
        with RawConnection(server.port) as greedy:
            for _ in range(20):
                greedy.call("EncodeStream", STREAM_REQUEST, end=False)
            await wait_until(client, lambda: streams_refused(server) >= 12)
            assert len((await client.encode(["bread"])).lengths) == 1


def streams_refused(server: Server) -> float:
    labels = {"method": "EncodeStream", "code": "RESOURCE_EXHAUSTED"}
    return metric_value(metrics_url(server), "headwaiter_requests_total", **labels)


async def test_an_idle_stream_ends_and_a_stream_that_waits_for_an_answer_does_not(text_bundle: Path) -> None:
    async with streaming(text_bundle, max_stream_idle_s=0.3) as (_, _, open_stream):
        call = open_stream()
        with paused_device() as device:
            await call.write(request("a", 3))
            await device.wait_for_batch()
            await asyncio.sleep(0.6)
            assert not call.done()
            device.resume()
            assert (await call.read()).HasField("response")
        ended, _ = await asyncio.wait({asyncio.create_task(call.code())}, timeout=5)
        assert [task.result() for task in ended] == [grpc.StatusCode.UNAVAILABLE]
        assert "0.3 s" in await call.details()


async def test_no_call_fails_while_old_connections_are_replaced(text_bundle: Path) -> None:
    used = set()
    async with (
        serving(text_bundle, max_connection_age_s=0.3) as server,
        connect(server) as client,
    ):
        end_s = time.monotonic() + 2
        while time.monotonic() < end_s:
            await asyncio.gather(*(client.encode(["bread"]) for _ in range(8)))
            used |= {each.laddr for each in psutil.Process().net_connections("tcp") if each.raddr[1:] == (server.port,)}
    assert len(used) >= 3


async def test_a_caller_that_answers_no_pings_loses_its_connection_and_its_calls(text_bundle: Path) -> None:
    with (
        patch.object(front_end, "_PING_INTERVAL_S", 0.3),
        patch.object(front_end, "_PING_TIMEOUT_S", 0.3),
        patch.object(front_end, "_HANDSHAKE_TIMEOUT_S", 0.5),
    ):
        async with serving(text_bundle) as server, connect(server) as client:
            silent = RawConnection(server.port, answers_pings=False)
            half_open = socket.create_connection(("127.0.0.1", server.port))
            half_open.settimeout(TIMEOUT_S / 4)
            with silent, half_open:
                silent.call("EncodeStream", STREAM_REQUEST, end=False)
                assert await asyncio.to_thread(silent.closed.wait, TIMEOUT_S / 4)
                # The server sends its settings and its reason, and closes the socket.
                assert await asyncio.to_thread(_reads_to_the_end, half_open)
            assert (await client.encode(["bread"])).pooled is not None


def _reads_to_the_end(connection: socket.socket) -> bool:
    with suppress(TimeoutError):
        while connection.recv(1024):
            pass
        return True
    return False


async def test_a_drain_does_not_wait_for_an_attend_whose_caller_has_gone(text_bundle: Path) -> None:
    computing, finish = threading.Event(), threading.Event()

    def run(*_: object) -> None:
        computing.set()
        finish.wait(TIMEOUT_S)

    with patch.object(AttentionWeightsGraph, "run", run):
        async with serving(text_bundle, drain_s=2) as server, connect(server) as client:
            attending = asyncio.create_task(client.attend("bread"))
            assert await asyncio.to_thread(computing.wait, TIMEOUT_S)
            attending.cancel()
            await wait_until(client, lambda: metric_value(metrics_url(server), "headwaiter_inflight_requests") == 0)
            async with asyncio.timeout(TIMEOUT_S / 2):
                await server.drain()
            finish.set()


async def test_a_message_of_millions_of_fields_is_refused_before_it_is_parsed(text_bundle: Path) -> None:
    message = pb.EncodeRequest(texts=pb.Texts(values=[""] * 1_000_000)).SerializeToString()
    async with (
        serving(text_bundle) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        encode: Any = channel.unary_unary("/headwaiter.v1.Encoder/Encode")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await encode(message)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        # The parser would have counted the sequences.
        assert "1000000" not in str(refused.value.details())


async def test_a_request_without_room_in_the_queue_is_refused_before_it_is_tokenised(text_bundle: Path) -> None:
    limits = {"max_queue_tokens": 10, "max_request_tokens": 10}
    async with serving(text_bundle, **limits) as server, connect(server) as client:
        with paused_device() as device:
            running = asyncio.create_task(client.encode_tokens([[1] * 3]))
            await device.wait_for_batch()
            waiting = asyncio.create_task(client.encode_tokens([[1] * 9]))
            await wait_until(client, lambda: metric_value(metrics_url(server), "headwaiter_queue_tokens") == 9)
            with (
                patch.object(BundleTokenizer, "tokenize", side_effect=AssertionError) as tokenize,
                pytest.raises(HeadwaiterError) as refused,
            ):
                await client.encode(["bread", "rain"])
            assert type(refused.value) is Overloaded
            assert tokenize.call_count == 0
            device.resume()
            await asyncio.gather(running, waiting)


async def test_bulk_texts_delay_neither_interactive_texts_nor_large_replies(text_bundle: Path) -> None:
    release = threading.Event()
    tokenize = BundleTokenizer.tokenize

    def slow_for_rain(
        self: BundleTokenizer, texts: Sequence[str], *rest: Any
    ) -> Generator[None, None, list[TokenizedText]]:
        assert texts[0] != "rain" or release.wait(TIMEOUT_S)
        return (yield from tokenize(self, texts, *rest))

    with patch.object(BundleTokenizer, "tokenize", slow_for_rain):
        async with serving(text_bundle) as server, connect(server) as client:
            # More requests than there are threads.
            bulk = [asyncio.create_task(client.encode(["rain", "rain"], priority="bulk")) for _ in range(40)]
            try:
                interactive = await _in_time(client.encode(["bread", "bread"]))
                large = await _in_time(client.encode_tokens([[1] * 64] * 20, hidden=True))
            finally:
                release.set()
            assert (interactive, large) == (True, True)
            await asyncio.gather(*bulk)


async def _in_time(call: Awaitable[object]) -> bool:
    with suppress(TimeoutError, HeadwaiterError):
        await asyncio.wait_for(call, TIMEOUT_S / 4)
        return True
    return False
