"""A caller that writes HTTP/2 frames itself, so that it can misbehave as no gRPC client does."""

import socket
import struct
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 8
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_INITIAL_WINDOW_SIZE = 4
_FRAME_BYTES = 16_384
_TIMEOUT_S = 20.0


class RawConnection:
    """One HTTP/2 connection.

    Attributes:
        closed: set when the server has closed the connection.
    """

    def __init__(self, port: int, window_bytes: int = 65_535, *, answers_pings: bool = True) -> None:
        """Connect.

        Args:
            port: the server's port.
            window_bytes: how many bytes of each reply the server may send.
            answers_pings: whether to answer the server's pings.
        """
        self.closed = threading.Event()
        self._answers_pings = answers_pings
        self._next_stream = 1
        self._send_window = 65_535
        self._window_grew = threading.Condition()
        self._socket = socket.create_connection(("127.0.0.1", port))
        setting = struct.pack(">HI", _INITIAL_WINDOW_SIZE, window_bytes)
        self._socket.sendall(_PREFACE + _frame(_SETTINGS, 0, 0, setting))
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def call(self, method: str, message: bytes, *, end: bool = True) -> int:
        """Start a call of a method of the Encoder with one message, and return its stream; `end` sends no more."""
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        headers = {
            ":method": "POST",
            ":scheme": "http",
            ":path": f"/headwaiter.v1.Encoder/{method}",
            ":authority": "test",
            "te": "trailers",
            "content-type": "application/grpc",
        }
        block = b"".join(b"\0" + _text(name) + _text(value) for name, value in headers.items())
        self._socket.sendall(_frame(_HEADERS, _END_HEADERS, stream, block))
        data = b"\0" + struct.pack(">I", len(message)) + message
        for start in range(0, len(data), _FRAME_BYTES):
            part = data[start : start + _FRAME_BYTES]
            with self._window_grew:
                assert self._window_grew.wait_for(lambda: self._send_window >= _FRAME_BYTES, _TIMEOUT_S)
                self._send_window -= len(part)
            last = end and start + _FRAME_BYTES >= len(data)
            self._socket.sendall(_frame(_DATA, _END_STREAM if last else 0, stream, part))
        return stream

    def reset(self, stream: int) -> None:
        """Cancel a call."""
        self._socket.sendall(_frame(_RST_STREAM, 0, stream, struct.pack(">I", 8)))

    def _read(self) -> None:
        received = self._socket.makefile("rb")
        with suppress(OSError, ValueError):
            while len(header := received.read(9)) == 9:
                payload = received.read(int.from_bytes(header[:3], "big"))
                kind, flags, stream = header[3], header[4], int.from_bytes(header[5:], "big")
                if kind == _SETTINGS and not flags & _ACK:
                    self._socket.sendall(_frame(_SETTINGS, _ACK, 0, b""))
                elif kind == _PING and not flags & _ACK and self._answers_pings:
                    self._socket.sendall(_frame(_PING, _ACK, 0, payload))
                elif kind == _WINDOW_UPDATE and not stream:
                    with self._window_grew:
                        self._send_window += int.from_bytes(payload, "big")
                        self._window_grew.notify_all()
        self.closed.set()


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def _text(text: str) -> bytes:
    """Return a short string in HPACK's form."""
    return bytes([len(text)]) + text.encode()
