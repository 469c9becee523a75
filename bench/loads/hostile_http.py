"""Hostile HTTP callers, in a process of their own: run it with `python -m bench.loads.hostile_http URL KIND`.

The process prints a line once its connections are open. It sends until SIGTERM, and then prints the number of answers
since that line. It exits with 1 if an answer has an unexpected status, or if the server closes an idle or a slow
connection.
"""

import asyncio
import os
import signal
import sys
from contextlib import suppress
from itertools import cycle

from bench.loads.http_calls import Connection, post
from bench.loads.traces import in_groups
from bench.processes import LOAD_CORE, pin

VALID = "for comparison: valid requests of one short text"
# Bodies that four connections send as fast as the server answers, and the status of the answer.
BODIES = {
    "malformed JSON": (b'{"input": [1, 2', 400),
    "200,000 opening brackets": (b"[" * 200_000, 400),
    "bodies of 10 MB": (b'{"input": "' + b"a" * 10_000_000 + b'"}', 413),
    "500,001 token ids; a request may have 65,536": (b'{"input": [' + b"1," * 500_000 + b"1]}", 400),
    "300,001 empty lists": (b'{"input": [' + b"[]," * 300_000 + b"[]]}", 400),
    VALID: (b'{"input": "rain on bread"}', 200),
}
IDLE, SLOW = "1,000 idle connections, half of them with a part of a request", "1,000 bodies that arrive at 1 byte/s"
KINDS = (IDLE, SLOW, *BODIES)
_SENDERS, _CONNECTIONS = 4, 1000
_PART, _SLOW_HEAD = b"POST /v1/embeddings HTTP/1.1\r\n", post(b" " * 1000)[:-1000]
# Connections to which a byte is sent at once; each connection gets one byte per second.
_CONNECTIONS_AT_ONCE = 50
# Seconds in which the server accepts the connections.
_SETTLE_S = 1.0


async def _run(url: str, kind: str) -> int:
    """Send until SIGTERM, and return the number of answers since the line."""
    answers = 0

    async def flood(connection: Connection, message: bytes, status: int) -> None:
        nonlocal answers
        while True:
            try:
                answered, _ = await connection.call(message)
            except (ConnectionError, asyncio.IncompleteReadError):
                # After some errors the server closes the connection.
                connection = await Connection.open(url)
                continue
            if answered != status:
                raise RuntimeError(f"status {answered} instead of {status}")
            answers += 1

    connections = [await Connection.open(url) for _ in range(_SENDERS if kind in BODIES else _CONNECTIONS)]
    if kind in BODIES:
        body, status = BODIES[kind]
        sending = [flood(connection, post(body), status) for connection in connections]
    else:
        sending = [_send_slowly(connections, kind)]
    callers = asyncio.gather(*sending)
    await asyncio.sleep(_SETTLE_S)
    answers = 0
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, callers.cancel)
    print("connected", flush=True)
    with suppress(asyncio.CancelledError):
        await callers
    return answers


async def _send_slowly(connections: list[Connection], kind: str) -> None:
    for connection in connections if kind == SLOW else connections[::2]:
        connection.write(_SLOW_HEAD if kind == SLOW else _PART)
    for at_once in cycle(in_groups(connections, _CONNECTIONS_AT_ONCE)):
        await asyncio.sleep(_CONNECTIONS_AT_ONCE / _CONNECTIONS)
        for connection in at_once:
            if connection.closed:
                raise RuntimeError("the server closed the connection")
            if kind == SLOW:
                connection.write(b" ")


if __name__ == "__main__":
    pin(LOAD_CORE)
    # The load generator of the gRPC callers runs on the same core, and must not wait for the hostile callers.
    os.nice(19)
    print(asyncio.run(_run(*sys.argv[1:])))
