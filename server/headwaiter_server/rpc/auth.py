"""Refuse calls without the server's bearer token."""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from grpc.aio import ServerInterceptor

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import Unauthenticated
from headwaiter_server.metrics import Recorder
from headwaiter_server.requests.bearer_token import carries_token
from headwaiter_server.rpc.endpoint import refusing_handler
from headwaiter_server.rpc.open_inference.service import METHODS

# Orchestrators check health without credentials.
_PUBLIC_SERVICE = "/grpc.health.v1.Health/"
_METHODS = METHODS.union(pb.DESCRIPTOR.services_by_name["Encoder"].methods_by_name)


class BearerToken(ServerInterceptor):
    """Answers calls without the token with Unauthenticated, except health checks."""

    def __init__(self, token: str, recorder: Recorder) -> None:
        self._token = token
        self._recorder = recorder

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable["grpc.RpcMethodHandler[Any, Any] | None"]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "grpc.RpcMethodHandler[Any, Any] | None":
        """Check the metadata of a call before its message is read."""
        metadata = dict(handler_call_details.invocation_metadata or ())
        given = metadata.get("authorization")
        method = handler_call_details.method
        if method.startswith(_PUBLIC_SERVICE) or carries_token(str(given), self._token):
            return await continuation(handler_call_details)
        # All unknown method names share one label, because callers must not create labels in the metrics.
        name = method.rpartition("/")[2]
        refusal = _no_token if given is None else _wrong_token
        return refusing_handler(name if name in _METHODS else "other", refusal, self._recorder)


def _no_token() -> Unauthenticated:
    return Unauthenticated("the call carries no bearer token: send the metadata authorization: Bearer TOKEN")


def _wrong_token() -> Unauthenticated:
    return Unauthenticated(
        "the call's metadata authorization is not the server's bearer token: send authorization: Bearer TOKEN with the "
        "token of this server"
    )
