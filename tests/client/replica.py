"""A stand-in for a server, as a process that a test can kill; at SIGTERM it says NOT_SERVING and stops at once.

python -m tests.client.replica PORT
"""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from headwaiter_proto import encoder_pb2 as pb
from tests.client.fake_server import answer

SERVICE = "headwaiter.v1.Encoder"
READY = b"ready\n"
_COMPUTE_S = 0.005
_LAST_ANSWERS_S = 1.0


class Replica:
    """A process that answers Encode; the model that it names is its port."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.start()

    def start(self) -> None:
        """Starts a process on the port."""
        command = [sys.executable, "-m", "tests.client.replica", str(self.port)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)

    def wait_until_ready(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == READY

    def stop(self, signal_number: signal.Signals) -> None:
        """Sends the signal, and returns once the process is gone."""
        assert self._process.stdout is not None
        self._process.send_signal(signal_number)
        self._process.wait()
        self._process.stdout.close()


@contextmanager
def running_replicas(ports: list[int]) -> Iterator[list[Replica]]:
    """Starts replicas, gives them once they serve, and kills them in the end."""
    replicas = [Replica(port) for port in ports]
    try:
        for replica in replicas:
            replica.wait_until_ready()
        yield replicas
    finally:
        for replica in replicas:
            replica.stop(signal.SIGKILL)


async def _serve(port: int) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)

    async def encode(raw: bytes, context: "grpc.aio.ServicerContext[bytes, bytes]") -> bytes:
        if stopped.is_set():
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the server is shutting down")
        await asyncio.sleep(_COMPUTE_S)
        response = answer(pb.EncodeRequest.FromString(raw))
        response.model.name = str(port)
        return response.SerializeToString()

    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(encode)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Encode": handler}),))
    servicer = health.aio.HealthServicer()
    await servicer.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    sys.stdout.buffer.write(READY)
    sys.stdout.flush()
    await stopped.wait()
    await servicer.enter_graceful_shutdown()
    await server.stop(_LAST_ANSWERS_S)


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
