"""Add the reflection service, which comes from another package, to a gRPC server."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from headwaiter_proto.rules.errors import Overloaded
from headwaiter_server.requests.shares import CallLimit
from headwaiter_server.rpc.aio_memory import end_with_error, read_message


class GenericHandlers:
    """Stands in for a server when generated code adds a service, and passes on only the service's generic handlers.

    Generated code also registers each method by name. The asyncio server of newer grpcio versions then waits
    separately for each registered method, which slows down every call of every method.
    """

    def __init__(self, server: grpc.aio.Server, streams: CallLimit) -> None:
        """Add services to `server`; `streams` limits their open streams."""
        self._server, self._streams = server, streams

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Add the generic handlers of a service to the server."""
        self._server.add_generic_rpc_handlers(tuple(_CheckedStreams(each, self._streams) for each in handlers))

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Ignore registered methods: the generic handlers answer the same methods."""


class _CheckedStreams(grpc.GenericRpcHandler):
    """Limits the streams of a service, and answers an unreadable message with INVALID_ARGUMENT.

    gRPC itself would answer an unreadable message with UNKNOWN, and log a traceback for each such message.
    """

    def __init__(self, service: grpc.GenericRpcHandler, streams: CallLimit) -> None:
        self._service, self._streams = service, streams

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any] | None":
        """Return the handler of a method, which takes raw messages and parses them itself."""
        handler: Any = self._service.service(handler_call_details)
        if handler is None:
            return None
        answer = self._checked(handler.stream_stream, handler.request_deserializer)
        return grpc.stream_stream_rpc_method_handler(answer, None, handler.response_serializer)

    def _checked(self, answer: Callable[..., AsyncIterator[Any]], parse: Callable[[bytes], Any]) -> Callable[..., Any]:
        async def check_and_answer(_: object, context: Any) -> AsyncIterator[Any]:
            async def requests() -> AsyncIterator[Any]:
                while (raw := await read_message(context)) is not grpc.aio.EOF:
                    try:
                        request = parse(raw)
                    except DecodeError:
                        problem = "the request cannot be parsed: check the client's .proto file"
                        await end_with_error(context, grpc.StatusCode.INVALID_ARGUMENT, problem)
                        return
                    yield request

            with ExitStack() as held:
                try:
                    self._streams.hold(context.peer(), held)
                except Overloaded as error:
                    await end_with_error(context, grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
                    return
                async for reply in answer(requests(), context):
                    yield reply

        return check_and_answer
