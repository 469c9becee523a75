"""Clients with replicas need no health service, and send the token and the metadata with health checks too."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from headwaiter_client import Unavailable
from tests.support.client.fake_server import Call, FakeServer

pytestmark = pytest.mark.usefixtures("starts_processes")

Proxy = Callable[[grpc.HandlerCallDetails], grpc.StatusCode | None]


class _Proxy(grpc.ServerInterceptor):
    """Refuses calls before they reach the server, with the code that a function returns."""

    def __init__(self, refuse: Proxy) -> None:
        self._refuse = refuse

    def intercept_service(self, continuation: Any, details: Any) -> Any:
        code = self._refuse(details)
        if code is None:
            return continuation(details)

        def refuse(_requests: Any, context: grpc.ServicerContext) -> None:
            context.abort(code, "the proxy refuses")

        return grpc.stream_stream_rpc_method_handler(refuse)


@pytest.fixture
def behind_proxy() -> Iterator[Callable[[Proxy], SimpleNamespace]]:
    """Start a server behind a proxy, and return a stand-in for the argument `server` of `call`: a list of replicas."""
    servers = []

    def start(refuse: Proxy) -> SimpleNamespace:
        servers.append(FakeServer(interceptors=[_Proxy(refuse)]))
        return SimpleNamespace(address=[servers[-1].address])

    yield start
    for server in servers:
        server.stop()


@pytest.mark.parametrize("connect", [{"token": "s3cret"}, {"metadata": {"authorization": "Bearer s3cret"}}])
def test_a_proxy_that_wants_the_token_on_every_method_lets_replicas_through(
    call: Call, behind_proxy: Callable[[Proxy], SimpleNamespace], connect: dict[str, Any]
) -> None:
    def refuse(details: grpc.HandlerCallDetails) -> grpc.StatusCode | None:
        return (
            None if ("authorization", "Bearer s3cret") in details.invocation_metadata else grpc.StatusCode.UNAVAILABLE
        )

    proxy = behind_proxy(refuse)
    assert call(proxy, "encode", ["a"], connect=connect).lengths.tolist() == [3]
    with pytest.raises(Unavailable):
        call(proxy, "encode", ["a"])


@pytest.mark.parametrize("code", [grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.PERMISSION_DENIED])
@pytest.mark.parametrize("connect", [{}, {"token": "s3cret"}])
def test_a_replica_without_health_checks_is_up(
    call: Call,
    behind_proxy: Callable[[Proxy], SimpleNamespace],
    code: grpc.StatusCode,
    connect: dict[str, Any],
) -> None:
    proxy = behind_proxy(lambda details: code if details.method.startswith("/grpc.health.v1.Health/") else None)
    assert call(proxy, "encode", ["a"], connect=connect).lengths.tolist() == [3]
