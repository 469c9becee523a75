"""Add services of other packages to a gRPC server: the health check and reflection."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import grpc
from google.protobuf.message import DecodeError


class GenericHandlers:
    """Stands in for a server when generated code adds a service, and passes on only the service's generic handlers.

    Generated code also registers each method by name. The asyncio server of newer grpcio versions then waits
    separately for each registered method, which slows down every call of every method.
    """

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Add the generic handlers of a service to the server."""
        self._server.add_generic_rpc_handlers(tuple(map(_RefusesUnreadable, handlers)))

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Ignore registered methods: the generic handlers answer the same methods."""


class _RefusesUnreadable(grpc.GenericRpcHandler):
    """Answers an unreadable message with INVALID_ARGUMENT.

    gRPC itself would answer with UNKNOWN, and log a traceback for each such message.
    """

    def __init__(self, service: grpc.GenericRpcHandler) -> None:
        self._service = service

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any] | None":
        """Return the handler of a method, which takes raw messages and parses them itself."""
        handler: Any = self._service.service(handler_call_details)
        if handler is None:
            return None
        parse, write = handler.request_deserializer, handler.response_serializer
        if handler.stream_stream:
            return grpc.stream_stream_rpc_method_handler(_checked_stream(handler.stream_stream, parse), None, write)
        if handler.unary_stream:
            return grpc.unary_stream_rpc_method_handler(_checked(handler.unary_stream, parse), None, write)
        return grpc.unary_unary_rpc_method_handler(_checked(handler.unary_unary, parse), None, write)


def _checked(answer: Callable[..., Any], parse: Callable[[bytes], Any]) -> Callable[..., Any]:
    async def check_and_answer(raw: bytes, context: Any) -> Any:
        return await answer(await _parsed(raw, parse, context), context)

    return check_and_answer


def _checked_stream(answer: Callable[..., AsyncIterator[Any]], parse: Callable[[bytes], Any]) -> Callable[..., Any]:
    async def check_and_answer(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[Any]:
        async def requests() -> AsyncIterator[Any]:
            async for raw in messages:
                yield await _parsed(raw, parse, context)

        async for reply in answer(requests(), context):
            yield reply

    return check_and_answer


async def _parsed(raw: bytes, parse: Callable[[bytes], Any], context: Any) -> Any:
    """Return the message, or end the call with INVALID_ARGUMENT."""
    try:
        return parse(raw)
    except DecodeError:
        problem = "the request cannot be parsed: check the client's .proto file"
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, problem)
