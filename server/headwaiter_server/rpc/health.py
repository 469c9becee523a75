"""The health service of gRPC, grpc.health.v1.Health.

The servicer of grpcio-health-checking 1.81.1 is not used: its `Watch` deletes the condition that all watchers of a
service share when one of them leaves, so the others hear nothing any more. It also has no limit of watchers.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from headwaiter_proto.rules.errors import HeadwaiterError
from headwaiter_proto.rules.status import FRONT_ENDS_KEY, code_of
from headwaiter_server.requests.shares import Shares
from headwaiter_server.rpc.aio_memory import end_with_error
from headwaiter_server.rpc.incoming import IncomingMessages
from headwaiter_server.rpc.service import SERVICE

NAME = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
# Each watcher holds a call.
_MAX_WATCHERS = 256

_Status = health_pb2.HealthCheckResponse


class HealthService:
    """Says whether the server and each of its models answer requests; needs no token."""

    def __init__(self, incoming: IncomingMessages, front_ends: int = 1) -> None:
        """Report nothing until `set_serving` is called.

        Args:
            incoming: reads the messages.
            front_ends: number of processes that receive the calls of the server; clients open more connections if there
                are several.
        """
        self._incoming = incoming
        self._metadata = ((FRONT_ENDS_KEY, str(front_ends)),) if front_ends > 1 else ()
        self._serving: dict[str, bool] = {}
        self._watchers = Shares(_MAX_WATCHERS)
        self._changed = asyncio.Event()
        self._draining = False

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler that a gRPC server dispatches the service's calls to."""
        return grpc.method_handlers_generic_handler(
            NAME,
            {
                "Check": grpc.stream_unary_rpc_method_handler(self._answering(self._check)),
                "Watch": grpc.stream_stream_rpc_method_handler(self._answering(self._watch)),
            },
        )

    def set_serving(self, serving: dict[str, bool]) -> None:
        """Report these services, by name; after `drain`, none of them serves."""
        self._serving = serving
        self._changed.set()
        self._changed = asyncio.Event()

    def drain(self) -> None:
        """Report from now on that no service serves."""
        self._draining = True
        self.set_serving(self._serving)

    def _status(self, service: str) -> Any:
        if service not in self._serving:
            return _Status.SERVICE_UNKNOWN
        return _Status.SERVING if self._serving[service] and not self._draining else _Status.NOT_SERVING

    def _answering(self, answer: Callable[[str, Any], Awaitable[Any]]) -> Any:
        async def read_and_answer(_: object, context: Any) -> Any:
            try:
                raw = await self._incoming.read(context, context.peer())
                service = health_pb2.HealthCheckRequest.FromString(raw).service
            except HeadwaiterError as error:
                return await _refuse(context, code_of(error), str(error))
            except DecodeError:
                problem = "the request cannot be parsed: check the client's .proto file"
                return await _refuse(context, grpc.StatusCode.INVALID_ARGUMENT, problem)
            return await answer(service, context)

        return read_and_answer

    async def _check(self, service: str, context: Any) -> bytes:
        status = self._status(service)
        if status == _Status.SERVICE_UNKNOWN:
            # Callers need no token, so the error does not name the models.
            problem = f"the server has no such service: leave the service empty, or send {SERVICE} or {SERVICE}/MODEL"
            return await _refuse(context, grpc.StatusCode.NOT_FOUND, problem)
        context.set_trailing_metadata(self._metadata)
        return _Status(status=status).SerializeToString()

    async def _watch(self, service: str, context: Any) -> None:
        connection, sent = context.peer(), None
        if not self._watchers.fits(connection, 1):
            problem = f"the server has at most {_MAX_WATCHERS} watchers of health, divided among connections: use Check"
            await _refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, problem)
            return
        self._watchers.take(connection, 1)
        try:
            while True:
                changed, status = self._changed, self._status(service)
                if status != sent:
                    await context.write(_Status(status=status).SerializeToString())
                    sent = status
                await changed.wait()
        finally:
            self._watchers.give_back(connection, 1)


async def _refuse(context: Any, code: grpc.StatusCode, problem: str) -> bytes:
    await end_with_error(context, code, problem)
    return b""
