"""Refuse calls without the server's bearer token."""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from grpc.aio import ServerInterceptor

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import Unauthenticated
from headwaiter_server.metrics.recorder import Recorder
from headwaiter_server.requests.bearer_token import carries_token
from headwaiter_server.rpc.endpoint import refusing_handler
from headwaiter_server.rpc.open_inference.service import METHODS

_ADMIN_METHODS = frozenset({"LoadModel", "UnloadModel", "RepositoryModelLoad", "RepositoryModelUnload"})
# Orchestrators check health without credentials.
_PUBLIC_SERVICE = "/grpc.health.v1.Health/"
_METHODS = METHODS.union(pb.DESCRIPTOR.services_by_name["Encoder"].methods_by_name)


class BearerToken(ServerInterceptor):
    """Answers calls without the token with Unauthenticated, except health checks."""

    def __init__(self, token: str | None, admin_token: str | None, recorder: Recorder) -> None:
        """Check the token of each call; None stands for calls that need no token.

        Args:
            token: the token of most calls.
            admin_token: the token of calls that load and unload models.
            recorder: counts the calls that are refused.
        """
        self._token, self._admin_token = token, admin_token
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
        name = method.rpartition("/")[2]
        token = self._admin_token if name in _ADMIN_METHODS else self._token
        if token is None or method.startswith(_PUBLIC_SERVICE) or carries_token(str(given), token):
            return await continuation(handler_call_details)
        # All unknown method names share one label, because callers must not create labels in the metrics.
        refusal = _no_token if given is None else _wrong_token
        return refusing_handler(name if name in _METHODS else "other", refusal, self._recorder)


def _no_token() -> Unauthenticated:
    return Unauthenticated("the call carries no bearer token: send the metadata authorization: Bearer TOKEN")


def _wrong_token() -> Unauthenticated:
    return Unauthenticated(
        "the call's metadata authorization is not the server's bearer token: send authorization: Bearer TOKEN with the "
        "token that this server wants for this method"
    )
