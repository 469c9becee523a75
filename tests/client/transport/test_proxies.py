"""What a caller learns if something other than a Headwaiter server answers: a proxy, a web server, or nobody."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import SimpleNamespace

import pytest

from headwaiter_client import HeadwaiterError, Transient, Unauthenticated, Unavailable, Unimplemented
from tests.support.client.fake_server import Call

# Types of HTTP/2 frames, and their flags. A client's first stream has the number 1.
_HEADERS, _SETTINGS = 1, 4
_ACK, _END_OF_STREAM_AND_HEADERS = 1, 5
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HTML = b"<html><body><h1>502 Bad Gateway</h1></body></html>"


def _speak_http2(status: int, connection: socket.socket) -> None:
    """Answer a call as a proxy does that speaks HTTP/2: with a status and nothing else."""
    # Index 8 of HPACK's static table is the name ":status"; the value follows as a literal of three bytes.
    status_header = b"\x08\x03" + str(status).encode()
    connection.sendall(_frame(_SETTINGS, 0, 0, b"") + _frame(_SETTINGS, _ACK, 0, b""))
    with connection.makefile("rb") as received:
        assert received.read(len(_PREFACE)) == _PREFACE
        while head := received.read(9):
            received.read(int.from_bytes(head[:3], "big"))
            if head[3] == _HEADERS:
                connection.sendall(_frame(_HEADERS, _END_OF_STREAM_AND_HEADERS, 1, status_header))


def _speak_http1(status: int, connection: socket.socket) -> None:
    """Answer a call as a web server does that speaks HTTP/1.1 alone."""
    connection.recv(1)
    connection.sendall(b"HTTP/1.1 %d Error\r\nContent-Length: %d\r\n\r\n%b" % (status, len(_HTML), _HTML))
    while connection.recv(1 << 16):
        pass


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


@contextmanager
def _proxy(speak: Callable[[socket.socket], None]) -> Iterator[SimpleNamespace]:
    """Answer every connection in a thread of its own."""

    def accept() -> None:
        with suppress(OSError):  # The test is over.
            while True:
                threading.Thread(target=answer, args=listener.accept()[:1], daemon=True).start()

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            speak(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield SimpleNamespace(address=f"127.0.0.1:{listener.getsockname()[1]}")
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.usefixtures("starts_processes")
@pytest.mark.parametrize(
    ("speak", "status", "error", "shown"),
    [
        (_speak_http2, 400, HeadwaiterError, ["INTERNAL", "400"]),
        (_speak_http2, 401, Unauthenticated, ["UNAUTHENTICATED", "401", "credentials"]),
        (_speak_http2, 403, Unauthenticated, ["PERMISSION_DENIED", "403", "credentials"]),
        (_speak_http2, 404, Unimplemented, ["UNIMPLEMENTED", "404", "address"]),
        (_speak_http2, 429, Unavailable, ["UNAVAILABLE", "429"]),
        (_speak_http2, 500, HeadwaiterError, ["UNKNOWN", "500"]),
        (_speak_http2, 502, Unavailable, ["UNAVAILABLE", "502"]),
        (_speak_http2, 503, Unavailable, ["UNAVAILABLE", "503"]),
        (_speak_http2, 504, Unavailable, ["UNAVAILABLE", "504"]),
        (_speak_http1, 502, Unavailable, ["UNAVAILABLE", "address"]),
    ],
)
def test_an_answer_of_a_proxy_is_not_taken_for_one_of_a_server(
    call: Call, speak: Callable[..., None], status: int, error: type[HeadwaiterError], shown: list[str]
) -> None:
    with _proxy(partial(speak, status)) as proxy, pytest.raises(HeadwaiterError) as caught:
        call(proxy, "encode", ["a"], timeout_s=20)
    assert type(caught.value) is error
    assert str(caught.value).startswith("no Headwaiter server answered (")
    assert "<html>" not in str(caught.value)
    for fact in shown:
        assert fact in str(caught.value)


def test_an_address_without_a_server_is_named_without_grpcs_list_of_attempts(call: Call) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(Transient) as caught:
            call(SimpleNamespace(address=address), "encode", ["a"])
    assert type(caught.value) is Unavailable
    assert str(caught.value).startswith("no Headwaiter server answered (UNAVAILABLE: ")
    for fact in (address, "Connection refused", "check the address"):
        assert fact in str(caught.value)
    assert "failed to connect to all addresses" not in str(caught.value)
