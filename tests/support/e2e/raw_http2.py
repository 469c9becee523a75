"""A caller that writes HTTP/2 frames itself, so that it can misbehave as no gRPC client does."""

import socket
import struct
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Self

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
    grpc_message,
)

_FRAME_BYTES = 16_384
_FIRST_WINDOW_BYTES = 65_535
_TIMEOUT_S = 20.0


class RawConnection:
    """One HTTP/2 connection.

    Attributes:
        closed: set when the server has closed the connection.
        ended: the streams that the server has ended.
    """

    def __init__(self, port: int, window_bytes: int = _FIRST_WINDOW_BYTES, *, answers_pings: bool = True) -> None:
        """Connect.

        Args:
            port: the server's port.
            window_bytes: how many bytes of each reply the server may send.
            answers_pings: whether to answer the server's pings.
        """
        self.closed = threading.Event()
        self.ended: set[int] = set()
        self._answers_pings = answers_pings
        self._next_stream = 1
        self._first_window = _FIRST_WINDOW_BYTES
        # How many bytes this caller may send: on each stream, and at 0 on all together.
        self._windows = {0: _FIRST_WINDOW_BYTES}
        self._window_grew = threading.Condition()
        # Two threads send.
        self._sending = threading.Lock()
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

    def call(self, method: str, message: bytes, *, end: bool = True) -> None:
        """Start a call of a method of the Encoder with one message; `end` sends no more."""
        stream, data = self._start(f"/headwaiter.v1.Encoder/{method}"), grpc_message(message)
        while data:
            with self._window_grew:
                assert self._window_grew.wait_for(lambda: self._room(stream), _TIMEOUT_S)
            part = self._send_part(stream, data, end=end)
            data = data[len(part) :]

    def send_unfinished(self, path: str, calls: int, message_bytes: int, seconds: float) -> None:
        """Start calls that each announce a message, and send all but its last byte as fast as the server allows."""
        message = grpc_message(bytes(message_bytes))[:-1]
        left = {self._start(path): memoryview(message) for _ in range(calls)}
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s and not self.closed.is_set():
            sent = 0
            for stream in left.keys() - self.ended:
                part = self._send_part(stream, left[stream], end=False)
                left[stream] = left[stream][len(part) :]
                sent += len(part)
            if not sent:
                with self._window_grew:
                    self._window_grew.wait(0.02)

    def _start(self, path: str) -> int:
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        with self._window_grew:
            self._windows[stream] = self._first_window
        self._send(frame(HEADERS, END_HEADERS, stream, grpc_headers(path)))
        return stream

    def _room(self, stream: int) -> int:
        return max(0, min(self._windows[stream], self._windows[0], _FRAME_BYTES))

    def _send_part(self, stream: int, data: bytes | memoryview, *, end: bool) -> bytes:
        """Send as much of the data as the server allows now, and return what was sent."""
        with self._window_grew:
            part = bytes(data[: self._room(stream)])
            self._windows[stream] -= len(part)
            self._windows[0] -= len(part)
        if part:
            last = end and len(part) == len(data)
            self._send(frame(DATA, END_STREAM if last else 0, stream, part))
        return part

    def _send(self, raw: bytes) -> None:
        with self._sending:
            self._socket.sendall(raw)

    def _read(self) -> None:
        received = self._socket.makefile("rb")
        with suppress(OSError, ValueError):
            while len(header := received.read(9)) == 9:
                payload = received.read(int.from_bytes(header[:3], "big"))
                kind, flags, stream = header[3], header[4], int.from_bytes(header[5:], "big")
                if kind == SETTINGS and not flags & ACK:
                    for key, value in struct.iter_unpack(">HI", payload):
                        if key == INITIAL_WINDOW_SIZE:
                            self._set_first_window(value)
                    self._send(frame(SETTINGS, ACK, 0))
                elif kind == PING and not flags & ACK and self._answers_pings:
                    self._send(frame(PING, ACK, 0, payload))
                elif kind == WINDOW_UPDATE:
                    with self._window_grew:
                        self._windows[stream] += int.from_bytes(payload, "big")
                        self._window_grew.notify_all()
                elif kind == RST_STREAM or (kind == HEADERS and flags & END_STREAM):
                    self.ended.add(stream)
        self.closed.set()

    def _set_first_window(self, value: int) -> None:
        with self._window_grew:
            for stream in self._windows.keys() - {0}:
                self._windows[stream] += value - self._first_window
            self._first_window = value
            self._window_grew.notify_all()
