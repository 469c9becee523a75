"""A caller that writes HTTP/2 frames itself, so that it can misbehave as no gRPC client does."""

import socket
import struct
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

from tests.support.soak.http2_frames import (
    ACK,
    CANCEL,
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
    grpc_message,
)

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
        setting = struct.pack(">HI", INITIAL_WINDOW_SIZE, window_bytes)
        self._socket.sendall(PREFACE + frame(SETTINGS, 0, 0, setting))
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
        self._socket.sendall(frame(HEADERS, END_HEADERS, stream, grpc_headers(f"/headwaiter.v1.Encoder/{method}")))
        data = grpc_message(message)
        for start in range(0, len(data), _FRAME_BYTES):
            part = data[start : start + _FRAME_BYTES]
            with self._window_grew:
                assert self._window_grew.wait_for(lambda: self._send_window >= _FRAME_BYTES, _TIMEOUT_S)
                self._send_window -= len(part)
            last = end and start + _FRAME_BYTES >= len(data)
            self._socket.sendall(frame(DATA, END_STREAM if last else 0, stream, part))
        return stream

    def reset(self, stream: int) -> None:
        """Cancel a call."""
        self._socket.sendall(frame(RST_STREAM, 0, stream, struct.pack(">I", CANCEL)))

    def _read(self) -> None:
        received = self._socket.makefile("rb")
        with suppress(OSError, ValueError):
            while len(header := received.read(9)) == 9:
                payload = received.read(int.from_bytes(header[:3], "big"))
                kind, flags, stream = header[3], header[4], int.from_bytes(header[5:], "big")
                if kind == SETTINGS and not flags & ACK:
                    self._socket.sendall(frame(SETTINGS, ACK, 0))
                elif kind == PING and not flags & ACK and self._answers_pings:
                    self._socket.sendall(frame(PING, ACK, 0, payload))
                elif kind == WINDOW_UPDATE and not stream:
                    with self._window_grew:
                        self._send_window += int.from_bytes(payload, "big")
                        self._window_grew.notify_all()
        self.closed.set()
