"""Hostile HTTP callers get the right status, and the server's memory and gRPC stay as they are."""

import json
import socket
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest

from headwaiter_client import Client
from testbed.server_process import RunningServer
from tests.support.server_processes import memory_bytes

# Bodies that are refused, and the status of each.
BODIES = {
    b"": 400,
    b"{": 400,
    b"\x00\xff": 400,
    b"[" * 200_000: 400,
    b'{"input": ' + b"1" * 100_000 + b"}": 400,
    b'{"input": [' + b"[]," * 100_000 + b"[]]}": 400,
    b'{"input": [' + b"1," * 500_000 + b"1]}": 400,
    b'{"input": "' + b"a" * 10_000_000 + b'"}': 413,
    b'{"input": {"$where": "sleep(1)"}}': 400,
    json.dumps({"input": "<script>alert(1)</script>\r\n\x1b[31m", "model": "<img src=x>"}).encode(): 404,
}


def status_of(server: RunningServer, body: bytes) -> tuple[int, str]:
    """Return the status of a request, and the type of the reply's content."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(server.metrics_url.replace("/metrics", "/v1/embeddings"), body, headers)
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, response.headers["content-type"]
    except urllib.error.HTTPError as error:
        return error.code, error.headers["content-type"]


def connect(server: RunningServer) -> socket.socket:
    parts = urlsplit(server.metrics_url)
    return socket.create_connection((parts.hostname or "", parts.port or 0), timeout=10)


def test_wrong_bodies_are_refused_and_leave_no_memory_behind(http_server: RunningServer) -> None:
    for body, status in BODIES.items():
        assert status_of(http_server, body) == (status, "application/json"), body[:30]
    before_bytes = memory_bytes(http_server)
    for _ in range(5):
        for body in BODIES:
            status_of(http_server, body)
    assert memory_bytes(http_server) - before_bytes < 32 << 20


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/playground/", 200),
        ("/playground/index.html?x=../../etc/passwd", 200),
        ("/playground/%69ndex.html", 200),
        ("/playground/../../../../etc/passwd", 404),
        ("/playground/%2e%2e/%2e%2e/etc/passwd", 404),
        ("/playground/..%2f..%2fpyproject.toml", 404),
        ("/playground/..%5c..%5cpage.py", 404),
        ("/playground/static%2findex.html", 404),
        ("/playground/index.html%00", 404),
        ("/playground/%252e%252e%252findex.html", 404),
        ("/playground/call%2fEncode", 405),
        ("//playground/index.html", 404),
        ("/playground/\xff\xfe", 400),
        ("/playground/<script>", 404),
        ("http://evil.example/playground/index.html", 404),
    ],
)
def test_no_address_leads_out_of_the_page(target: str, status: int, http_server: RunningServer) -> None:
    with connect(http_server) as caller:
        caller.sendall(f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode("latin-1"))
        received = b"".join(iter(lambda: caller.recv(65536), b""))
    head = received.partition(b"\r\n\r\n")[0].lower()
    assert received.startswith(f"HTTP/1.1 {status} ".encode())
    if target.isascii():  # Other bytes are no HTTP, and do not reach the application.
        assert b"x-content-type-options: nosniff" in head
    assert (b"text/html" in head) is (status == 200)


def test_a_body_of_one_byte_a_second_is_refused_at_the_time_limit(http_server: RunningServer) -> None:
    with connect(http_server) as caller:
        caller.sendall(b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        started_s = time.monotonic()
        received = b""
        caller.settimeout(0.5)
        while not received and time.monotonic() - started_s < 10:
            try:
                received = caller.recv(4096)
            except TimeoutError:
                caller.sendall(b" ")
    assert received.startswith(b"HTTP/1.1 408 ")
    assert 1 < time.monotonic() - started_s < 9


@pytest.mark.parametrize(
    "request_bytes", [b"\x16\x03\x01\x02\x00\x01", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"x" * 100_000]
)
def test_bytes_that_are_no_request_close_the_connection(request_bytes: bytes, http_server: RunningServer) -> None:
    with connect(http_server) as caller:
        caller.sendall(request_bytes + b"\r\n\r\n")
        received = caller.recv(4096)
        assert received == b"" or received.startswith(b"HTTP/1.1 400 ")


def test_idle_connections_hurt_neither_http_nor_grpc(http_server: RunningServer) -> None:
    with Client(http_server.address) as client, ExitStack() as idle:
        client.encode(["rain"])
        before_bytes = memory_bytes(http_server)
        for number in range(1000):
            connection = idle.enter_context(connect(http_server))
            if number % 2:
                connection.sendall(b"POST /v1/embeddings HTTP/1.1\r\n")
        assert len(client.encode(["rain"]).lengths) == 1
        assert status_of(http_server, b'{"input": "rain"}')[0] == 200
        assert memory_bytes(http_server) - before_bytes < 64 << 20


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n", 400),
        (b"Content-Length: 2\r\nContent-Encoding: gzip\r\n", 415),
        (b"Content-Length: 2\r\nContent-Encoding: identity\r\n", 400),
    ],
)
def test_two_lengths_and_compressed_bodies_are_refused(headers: bytes, status: int, http_server: RunningServer) -> None:
    with connect(http_server) as caller:
        caller.sendall(b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\n" + headers + b"\r\n{}")
        received = caller.recv(65536)
    assert received.startswith(f"HTTP/1.1 {status} ".encode())
    assert (b"connection: close" in received.lower()) is (b"chunked" in headers)
