"""A minimal grpc.aio server of a graph: it parses a request, runs the graph in a thread and returns the vector's bytes.

Run it with `python -m bench.servers.bare BUNDLE --address HOST:PORT`; it ignores the other flags of headwaiter-server.
"""

import argparse
import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
from grpc.aio import ServicerContext

from bench.servers.echo import serve
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_server.rpc.service import SERVICE
from headwaiter_server.runtime.graph import EncoderGraph
from headwaiter_server.runtime.packing import pack


def encode_handler(graph: EncoderGraph) -> grpc.GenericRpcHandler:
    """Return a gRPC handler for Encode requests of one sequence."""
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


def main() -> None:
    """Serve as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--address", required=True)
    known, _ = parser.parse_known_args()
    graph = EncoderGraph.open(known.bundle / "packed-cpu.fp32.onnx", "cpu", threads=1)
    asyncio.run(serve(encode_handler(graph), known.address))


if __name__ == "__main__":
    main()
