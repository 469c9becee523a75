"""HTTP/2 frames as bytes, and a connection that sends them without following the protocol's rules."""

import socket
import struct
from collections.abc import Iterable
from contextlib import suppress

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 8, 9
END_STREAM, ACK, END_HEADERS = 1, 1, 4
INITIAL_WINDOW_SIZE, CANCEL = 4, 8
_SEND_TIMEOUT_S = 2


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return one frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def headers(fields: Iterable[tuple[str, str]]) -> bytes:
    """Return header fields as HPACK literals without indexing."""
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in fields)


def grpc_headers(path: str) -> bytes:
    """Return the header fields of a gRPC call."""
    fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "x", "te": "trailers"}
    return headers([*fields.items(), ("content-type", "application/grpc")])


def grpc_message(raw: bytes) -> bytes:
    """Return a message as it stands in DATA frames."""
    return struct.pack(">BI", 0, len(raw)) + raw


def _text(text: str) -> bytes:
    raw = text.encode()
    if len(raw) < 0x7F:
        return bytes([len(raw)]) + raw
    length, groups = len(raw) - 0x7F, [0x7F]
    while length > 0x7F:
        groups.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([*groups, length]) + raw


class Connection:
    """A TCP connection that has sent HTTP/2's preface.

    Attributes:
        closed: whether the server has ended the connection.
    """

    def __init__(self, address: str, settings: bytes = b"", preface: bytes = PREFACE) -> None:
        host, _, port = address.rpartition(":")
        self.closed = False
        self._socket = socket.create_connection((host, int(port)))
        # Python's own time-outs would make every read wait.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SEND_TIMEOUT_S, 0))
        if preface:
            self.send(preface + frame(SETTINGS, 0, 0, settings))

    def send(self, raw: bytes) -> None:
        """Send bytes, and drop what the server has sent."""
        try:
            self._socket.sendall(raw)
            self.drop_received()
        except OSError:
            self.closed = True

    def drop_received(self) -> int:
        """Drop what the server has sent so far, and return its size in bytes."""
        dropped = 0
        with suppress(BlockingIOError):
            while received := self._socket.recv(1 << 16, socket.MSG_DONTWAIT):
                dropped += len(received)
            self.closed = True
        return dropped

    def close(self) -> None:
        """Close the connection without HTTP/2's farewell."""
        self._socket.close()
