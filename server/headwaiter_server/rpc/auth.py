"""Refuse calls without one of the server's bearer tokens."""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from grpc.aio import ServerInterceptor

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import Unauthenticated
from headwaiter_server.metrics.recorder import Recorder
from headwaiter_server.rpc.endpoint import TENANT, refusing_handler
from headwaiter_server.rpc.open_inference.service import METHODS, SERVICE
from headwaiter_server.settings.credentials import Credentials

_ADMIN_METHODS = frozenset({"LoadModel", "UnloadModel", "RepositoryModelLoad", "RepositoryModelUnload"})
# Orchestrators check health without credentials.
_PUBLIC_SERVICE = "/grpc.health.v1.Health/"
_HEALTH_METHODS = frozenset(f"/{SERVICE}/{name}" for name in ("ServerLive", "ServerReady", "ModelReady"))
_METHODS = METHODS.union(pb.DESCRIPTOR.services_by_name["Encoder"].methods_by_name)


class BearerToken(ServerInterceptor):
    """Answers calls without a token with Unauthenticated, except health checks.

    Args:
        credentials: returns the tokens that callers may send now.
        recorder: counts the calls that are refused.
    """

    def __init__(self, credentials: Callable[[], Credentials], recorder: Recorder) -> None:
        self._credentials, self._recorder = credentials, recorder

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
        credentials = self._credentials()
        tokens = credentials.admin_tokens if name in _ADMIN_METHODS else credentials.tokens
        if tokens is None or method.startswith(_PUBLIC_SERVICE) or method in _HEALTH_METHODS:
            return await continuation(handler_call_details)
        tenant = tokens.tenant(str(given))
        if tenant is not None:
            TENANT.set(tenant)
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
