"""A bare relay: two processes receive calls, pass each message through a socket to a third, and return its answer.

This is the least that a front end does. It checks nothing, reads nothing, and has no metrics.

Run it with `python -m bench.servers.relay BUNDLE --address HOST:PORT`; it ignores the bundle and all other flags.
/echo/unary-BYTES answers each message with this number of zero bytes.
"""

import argparse
import asyncio
import os
import signal
import socket

import grpc
from grpc.aio import ServicerContext

from headwaiter_server.processes.link import Link
from headwaiter_server.processes.messages import Kind, write_objects
from headwaiter_server.rpc.health import HealthService
from headwaiter_server.rpc.incoming import IncomingMessages

_FRONT_ENDS = 2


class _Relay(grpc.GenericRpcHandler):
    def __init__(self, link: Link) -> None:
        self._link = link

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes] | None":
        if not handler_call_details.method.startswith("/echo/"):
            return None
        size_bytes = int(handler_call_details.method.rpartition("-")[2])

        async def relay(request: bytes, context: "ServicerContext[bytes, bytes]") -> bytes:
            reply: bytes = await self._link.ask(Kind.REQUEST, [size_bytes.to_bytes(4, "little"), request])
            return reply

        return grpc.unary_unary_rpc_method_handler(relay)


async def _front_end(engine: socket.socket, address: str) -> None:
    link = Link("the engine", {})
    await link.open(engine)
    server = grpc.aio.server(options=[("grpc.so_reuseport", 1)])
    health = HealthService(IncomingMessages(4 << 20))
    server.add_generic_rpc_handlers((_Relay(link), health.handler()))
    health.set_serving({"": True})
    server.add_insecure_port(address)
    await server.start()
    await link.closed


async def _engine(front_ends: list[socket.socket]) -> None:
    links: list[Link] = []
    for end in front_ends:

        def answer(number: int, payload: bytes, place: int = len(links)) -> None:
            reply = bytes(int.from_bytes(payload[:4], "little"))
            links[place].send(Kind.RETURNED, number, write_objects(reply))

        links.append(Link("a front end", {}, answer))
        await links[-1].open(end)
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await stopped.wait()


def main() -> None:
    """Serve as the command line says, until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", required=True)
    address = parser.parse_known_args()[0].address
    ends: list[socket.socket] = []
    for _ in range(_FRONT_ENDS):
        ours, theirs = socket.socketpair()
        if os.fork() == 0:
            ours.close()
            for end in ends:
                end.close()
            asyncio.run(_front_end(theirs, address))
            os._exit(0)
        theirs.close()
        ends.append(ours)
    asyncio.run(_engine(ends))


if __name__ == "__main__":
    main()
