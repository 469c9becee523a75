"""A minimal grpc.aio server, to compare Headwaiter's front end with.

- Encode parses a request of one sequence, runs the packed graph in a thread, and returns the bytes of the vector.
- /echo/unary-BYTES answers each message with this number of zero bytes.

Run it with `python -m bench.servers.minimal BUNDLE --address HOST:PORT`; it ignores all other flags.
"""

import argparse
import asyncio
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
from grpc.aio import ServicerContext

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_server.rpc.health import HealthService
from headwaiter_server.rpc.incoming import IncomingMessages
from headwaiter_server.rpc.service import SERVICE
from headwaiter_server.runtime.graph import EncoderGraph
from headwaiter_server.runtime.packing import pack


class _EchoHandler(grpc.GenericRpcHandler):
    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes] | None":
        service, _, method = handler_call_details.method[1:].partition("/")
        if service != "echo":
            return None
        reply = bytes(int(method.removeprefix("unary-")))

        async def answer(request: bytes, context: "ServicerContext[bytes, bytes]") -> bytes:
            return reply

        return grpc.unary_unary_rpc_method_handler(answer)


def _encode_handler(graph: EncoderGraph) -> grpc.GenericRpcHandler:
    thread = ThreadPoolExecutor(1)

    def run(ids: bytes) -> bytes:
        pooled = graph.run(pack([np.frombuffer(ids, "<i4")]), hidden=False).pooled
        assert pooled is not None
        return pooled.tobytes()

    async def encode(raw: bytes, context: "ServicerContext[bytes, bytes]") -> bytes:
        ids = pb.EncodeRequest.FromString(raw).tokens.data
        return await asyncio.get_running_loop().run_in_executor(thread, run, ids)

    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(encode)
    return grpc.method_handlers_generic_handler(SERVICE, {"Encode": handler})


async def serve(graph: EncoderGraph, address: str) -> None:
    """Serve until SIGTERM."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_EchoHandler(), _encode_handler(graph)))
    service = HealthService(IncomingMessages(4 << 20))
    server.add_generic_rpc_handlers((service.handler(),))
    service.set_serving({"": True})
    server.add_insecure_port(address)
    await server.start()
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await stopped.wait()
    await server.stop(0)


def main() -> None:
    """Serve as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--address", required=True)
    known, _ = parser.parse_known_args()
    asyncio.run(serve(EncoderGraph.open(known.bundle / "packed-cpu.fp32.onnx", "cpu", threads=1), known.address))


if __name__ == "__main__":
    main()
