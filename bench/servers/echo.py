"""A grpc.aio server that answers each message with the number of zero bytes that the method's name ends with.

Run it with `python -m bench.servers.echo BUNDLE --address HOST:PORT`; it ignores the other flags of headwaiter-server.
Its methods are /echo/unary-BYTES and /echo/stream-BYTES.
"""

import argparse
import asyncio
import signal
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc.aio import ServicerContext
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from headwaiter_server.rpc.handlers import GenericHandlers


class _Echo(grpc.GenericRpcHandler):
    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes] | None":
        service, _, method = handler_call_details.method[1:].partition("/")
        if service != "echo":
            return None
        kind, _, size_bytes = method.partition("-")
        reply = bytes(int(size_bytes))

        async def unary(request: bytes, context: "ServicerContext[bytes, bytes]") -> bytes:
            return reply

        async def stream(requests: AsyncIterator[bytes], context: "ServicerContext[bytes, bytes]") -> None:
            async for _ in requests:
                await context.write(reply)

        if kind == "unary":
            return grpc.unary_unary_rpc_method_handler(unary)
        return grpc.stream_stream_rpc_method_handler(stream)


async def serve(handler: grpc.GenericRpcHandler, address: str) -> None:
    """Serve a handler and health checks until SIGTERM."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handler,))
    servicer = health.aio.HealthServicer()
    # Registered methods would slow every call, so Headwaiter uses generic handlers for health checks, and so does this.
    generic: Any = GenericHandlers(server)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, generic)
    await servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    server.add_insecure_port(address)
    await server.start()
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await stopped.wait()
    await server.stop(0)


def main() -> None:
    """Serve as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", required=True)
    known, _ = parser.parse_known_args()
    asyncio.run(serve(_Echo(), known.address))


if __name__ == "__main__":
    main()
