"""A connection whose calls each send a part of a message, as fast as the server allows, and then nothing more."""

import select
import socket
import struct
import time
from collections.abc import Iterator

from tests.support.soak.http2_frames import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    grpc_headers,
)

_FRAME_BYTES = 16_000
_FIRST_WINDOW_BYTES = 65_535
# Frames that wait to be sent, at most.
_OUT_BYTES = 1 << 20


class PartialMessages:
    """Calls of one connection that each announce `message_bytes`, and send all but the last of them.

    Attributes:
        sent_bytes: the bytes of messages that were sent.
        ended: the streams that the server has ended.
    """

    def __init__(self, address: str, path: str, streams: int, message_bytes: int) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setblocking(False)
        self._left = dict.fromkeys(range(1, 2 * streams, 2), message_bytes - 1)
        self._windows = dict.fromkeys(self._left, _FIRST_WINDOW_BYTES)
        self._connection_window = self._first_window = _FIRST_WINDOW_BYTES
        self._out = bytearray(PREFACE + frame(SETTINGS, 0, 0))
        self._prefix = {stream: struct.pack(">BI", 0, message_bytes) for stream in self._left}
        for stream in self._left:
            self._out += frame(HEADERS, END_HEADERS, stream, grpc_headers(path))
        self._received = bytearray()
        self.sent_bytes = 0
        self.ended: set[int] = set()

    def run(self, seconds: float) -> None:
        """Send for some seconds; the connection then stays open until `close`."""
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            readable, writable, _ = select.select([self._socket], [self._socket] if self._out else [], [], 0.02)
            if readable:
                received = self._socket.recv(1 << 20)
                if not received:
                    return
                self._received += received
                for kind, flags, stream, payload in self._frames():
                    self._handle(kind, flags, stream, payload)
            if len(self._out) < _OUT_BYTES:
                self._write_messages()
            if writable:
                del self._out[: self._socket.send(self._out)]

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _frames(self) -> Iterator[tuple[int, int, int, bytes]]:
        while len(self._received) >= 9:
            size = int.from_bytes(self._received[:3], "big")
            if len(self._received) < 9 + size:
                return
            kind, flags = self._received[3], self._received[4]
            stream = int.from_bytes(self._received[5:9], "big") & 0x7FFF_FFFF
            payload = bytes(self._received[9 : 9 + size])
            del self._received[: 9 + size]
            yield kind, flags, stream, payload

    def _handle(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == SETTINGS and not flags & ACK:
            for key, value in struct.iter_unpack(">HI", payload):
                if key == INITIAL_WINDOW_SIZE:
                    for each in self._windows:
                        self._windows[each] += value - self._first_window
                    self._first_window = value
            self._out += frame(SETTINGS, ACK, 0)
        elif kind == PING and not flags & ACK:
            self._out += frame(PING, ACK, 0, payload)
        elif kind == WINDOW_UPDATE:
            (grown,) = struct.unpack(">I", payload)
            if stream:
                self._windows[stream] += grown
            else:
                self._connection_window += grown
        elif kind == RST_STREAM or (kind == HEADERS and flags & END_STREAM):
            self.ended.add(stream)
            self._left[stream] = 0

    def _write_messages(self) -> None:
        for stream, left in self._left.items():
            prefix = self._prefix.get(stream, b"")
            size = min(left, self._windows[stream] - len(prefix), self._connection_window - len(prefix), _FRAME_BYTES)
            if size <= 0:
                continue
            self._out += frame(DATA, 0, stream, prefix + bytes(size))
            self._prefix.pop(stream, None)
            self._windows[stream] -= size + len(prefix)
            self._connection_window -= size + len(prefix)
            self._left[stream] -= size
            self.sent_bytes += size
