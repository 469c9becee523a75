"""Statuses of gRPC become the errors of the client; attempts share a timeout, and leave no timer."""

import asyncio
import time
from collections.abc import Generator
from typing import Any
from unittest.mock import patch

import grpc
import pytest

from headwaiter_client import AsyncClient, Client, Overloaded, RetryPolicy
from headwaiter_client.calls.steps import HEALTH_METHOD
from headwaiter_client.transport.grpc_transports import AsyncGrpcTransport, GrpcTransport
from headwaiter_client.transport.status import error_from_rpc
from headwaiter_proto.rules import errors
from headwaiter_proto.rules.status import DETAILS_KEY, status_of

SERVING = b"\x08\x01"  # A HealthCheckResponse.


class _Failed(grpc.RpcError):
    """The error of a call that a server has refused."""

    def __init__(self, error: errors.HeadwaiterError) -> None:
        self._status = status_of(error, "r")

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.RESOURCE_EXHAUSTED

    def details(self) -> str:
        return str(self._status.message)

    def trailing_metadata(self) -> Any:
        return ((DETAILS_KEY, self._status.SerializeToString()),)


@pytest.mark.parametrize("delay_s", [0.05, 1.5, 40.0])
def test_an_error_has_the_delay_that_the_server_asks_for(delay_s: float) -> None:
    error = error_from_rpc(
        _Failed(errors.Overloaded("the queue is full", retry_after_s=delay_s)), timeout_s=1, request_id=None
    )
    assert isinstance(error, Overloaded)
    assert error.retry_after_s == pytest.approx(delay_s)


def test_a_further_attempt_has_only_the_time_that_is_left() -> None:
    timeouts_s: list[float] = []

    def stub(request: bytes, timeout: float, **_: Any) -> bytes:
        timeouts_s.append(timeout)
        time.sleep(0.05)
        raise _Failed(errors.Overloaded("the queue is full", retry_after_s=0.01))

    with (
        patch.object(GrpcTransport, "_stub", lambda *_: stub),
        Client("127.0.0.1:1", retry=RetryPolicy(3), timeout_s=10.0) as client,
        pytest.raises(Overloaded),
    ):
        client.models()
    first_s, second_s, third_s = timeouts_s
    assert 10.0 >= first_s > second_s + 0.05 > third_s + 0.1


class _Answered:
    """A call of grpc.aio that is answered at once, with an empty message."""

    def __init__(self, method: str) -> None:
        self._reply = SERVING if method == HEALTH_METHOD else b""

    def __await__(self) -> Generator[None, None, bytes]:
        yield
        return self._reply

    async def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.OK

    async def trailing_metadata(self) -> tuple[()]:
        return ()


async def test_a_call_that_has_ended_leaves_no_timer() -> None:
    def stub(_: AsyncGrpcTransport, index: int, method: str) -> Any:
        return lambda *_, **__: _Answered(method)

    loop: Any = asyncio.get_running_loop()
    with patch.object(AsyncGrpcTransport, "_stub", stub):
        async with AsyncClient(["127.0.0.1:1", "127.0.0.1:2"]) as client:
            await client.models()
            before = sum(not timer.cancelled() for timer in loop._scheduled)
            for _ in range(20):
                await client.models()
            assert sum(not timer.cancelled() for timer in loop._scheduled) <= before + 2
