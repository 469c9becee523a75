"""A fake server in a process that a test can kill; on SIGTERM its health check says NOT_SERVING and it stops at once.

python -m tests.support.client.replica_process PORT
"""

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from headwaiter_proto import encoder_pb2 as pb
from tests.support.client.fake_server import encode_response

SERVICE = "headwaiter.v1.Encoder"
READY = b"ready\n"
_COMPUTE_S = 0.005
_LAST_ANSWERS_S = 1.0


class ReplicaProcess:
    """A process that answers Encode; the name of its model is its port."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.start()

    def start(self) -> None:
        """Start a process on the port."""
        command = [sys.executable, "-m", "tests.support.client.replica_process", str(self.port)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)

    def wait_until_ready(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == READY

    def send(self, signal_number: signal.Signals) -> None:
        """Send a signal, such as SIGSTOP to freeze the process and SIGCONT to wake it."""
        self._process.send_signal(signal_number)

    def stop(self, signal_number: signal.Signals) -> None:
        """Send a signal, and wait until the process has ended."""
        assert self._process.stdout is not None
        self._process.send_signal(signal_number)
        self._process.wait()
        self._process.stdout.close()


def free_ports(count: int) -> list[int]:
    """Return ports that no process uses now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports


@contextmanager
def running_replicas(ports: list[int]) -> Iterator[list[ReplicaProcess]]:
    """Start replicas, yield them when all serve, and kill them at the end."""
    replicas = [ReplicaProcess(port) for port in ports]
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
        response = encode_response(pb.EncodeRequest.FromString(raw))
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
