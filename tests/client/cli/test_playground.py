"""The subcommand `playground`: the page on this machine, and the calls that it passes on."""

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import grpc
import pytest
from google.protobuf.message import Message
from google.rpc.error_details_pb2 import ErrorInfo

from headwaiter_client.cli import main
from headwaiter_client.cli.page_server import PageServer
from headwaiter_proto.rules.errors import Starting
from tests.client.cli.conftest import Command
from tests.support.client.fake_server import FakeServer

JSON = {"Content-Type": "application/json"}


@pytest.fixture
def page(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[PageServer]:
    """The page server that the command starts, serving in a thread until the test ends."""
    started: list[PageServer] = []
    running = threading.Event()

    serve_forever = PageServer.serve_forever

    def serve_until_ctrl_c(self: PageServer) -> None:
        started.append(self)
        running.set()
        serve_forever(self, poll_interval=0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(PageServer, "serve_forever", serve_until_ctrl_c)
    status: list[int] = []
    arguments = ["playground", "--port", "0", "--timeout-s", "10"]
    command = threading.Thread(target=lambda: status.append(main(arguments)))
    command.start()
    assert running.wait(10)
    yield started[0]
    started[0].shutdown()
    command.join()
    assert status == [0]


def ask(
    page: PageServer, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    """Return the status, the headers and the body of a reply."""
    with closing(http.client.HTTPConnection("127.0.0.1", page.server_port, timeout=10)) as connection:
        connection.request(method, path, body, headers or {})
        reply = connection.getresponse()
        return reply.status, dict(reply.getheaders()), reply.read()


def test_the_command_serves_the_page_on_this_machine_only(page: PageServer) -> None:
    assert page.server_address[0] == "127.0.0.1"
    status, headers, content = ask(page, "GET", "/playground/")
    assert status == 200
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert b"<html" in content
    assert ask(page, "GET", "/playground/style.css?v=1")[0] == 200
    assert ask(page, "GET", "/playground/", headers={"If-None-Match": headers["ETag"]})[::2] == (304, b"")
    for path in ("/", "/playground"):
        status, headers, _ = ask(page, "GET", path)
        assert (status, headers["Location"]) == (307, "/playground/")
    assert ask(page, "GET", "/metrics")[0] == 204
    for path in ("/metric", "/playground/page.py", "/playground/../page.py", "/playground/static/"):
        assert ask(page, "GET", path)[0] == 404


def test_a_call_of_the_page_reaches_the_server(page: PageServer, server: FakeServer) -> None:
    status, headers, body = ask(
        page, "POST", "/playground/call/Attend", b'{"texts": {"values": ["a b"]}, "layers": [1]}', JSON
    )
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert json.loads(body)["tokens"] == ["[CLS]", "a", "b", "[SEP]"]
    assert server.remaining_s < 15  # The flag is --timeout-s 10.


def test_an_error_has_the_message_of_the_server(page: PageServer, server: FakeServer) -> None:
    info = ErrorInfo(reason="INVALID_INPUT", domain="headwaiter", metadata={"sequence": "0"})
    server.refuse(grpc.StatusCode.INVALID_ARGUMENT, "sequence 0 is bad", info)
    status, _, body = ask(page, "POST", "/playground/call/Encode", b'{"texts": {"values": ["x"]}}', JSON)
    assert status == 400
    assert json.loads(body) == {
        "code": "INVALID_ARGUMENT",
        "reason": "INVALID_INPUT",
        "message": "sequence 0 is bad",
        "metadata": {"sequence": "0"},
    }


def test_an_error_that_passes_says_when_to_try_again(starts_processes: None) -> None:
    def call(method: str, request: Message, reply_class: type[Message]) -> Message:
        raise Starting("the server is starting: wait", retry_after_s=9.5)

    with PageServer(call, 0) as page:
        thread = threading.Thread(target=page.serve_forever, args=(0.01,))
        thread.start()
        try:
            status, headers, _ = ask(page, "POST", "/playground/call/ListModels", b"{}", JSON)
        finally:
            page.shutdown()
            thread.join()
    assert (status, headers["Retry-After"]) == (503, "10")


@pytest.mark.parametrize(
    ("path", "headers", "body", "status"),
    [
        ("Encode", JSON, b"{", 400),
        ("Encode", {"Content-Type": "text/plain"}, b"{}", 415),
        ("Encode", {}, b"{}", 415),
        ("Encode", {**JSON, "Content-Length": "5000000"}, b"", 413),
        ("Encode", {**JSON, "Content-Length": "1" * 5000}, b"", 413),
        ("Encode", {**JSON, "Content-Length": "-1"}, b"", 400),
        ("Encode", {**JSON, "Transfer-Encoding": "chunked"}, b"2\r\n{}\r\n0\r\n\r\n", 400),
        ("LoadModel", JSON, b"{}", 404),
        ("", JSON, b"{}", 404),
        ("../call/Encode", JSON, b"{}", 404),
        ("Encode", {**JSON, "Host": "evil.example:80"}, b"{}", 403),
        ("Encode", {**JSON, "Authorization": "Bearer two words"}, b"{}", 401),
    ],
)
def test_a_request_that_the_page_does_not_send_is_refused(
    page: PageServer, server: FakeServer, path: str, headers: dict[str, str], body: bytes, status: int
) -> None:
    found, reply_headers, reply = ask(page, "POST", f"/playground/call/{path}", body, headers)
    assert found == status
    assert json.loads(reply)["message"]
    # The rest of a refused request must not count as the next request of the connection.
    is_read = status in (400, 401) and not {"Content-Length", "Transfer-Encoding"} & headers.keys()
    assert (reply_headers.get("Connection") == "close") == (not is_read)
    assert reply_headers["X-Content-Type-Options"] == "nosniff"
    assert server.requests == []


def test_another_host_name_gets_no_page(page: PageServer) -> None:
    assert ask(page, "GET", "/playground/", headers={"Host": f"evil.example:{page.server_port}"})[0] == 403
    assert ask(page, "GET", "/playground/", headers={"Host": f"localhost:{page.server_port}"})[0] == 200


def test_the_token_that_the_user_types_goes_to_the_server(page: PageServer, server: FakeServer) -> None:
    for token, expected in ((None, None), ("s3cret", "Bearer s3cret"), (None, None)):
        headers = {**JSON, "Authorization": f"Bearer {token}"} if token else JSON
        assert ask(page, "POST", "/playground/call/ListModels", b"{}", headers)[0] == 200
        assert server.metadata.get("authorization") == expected


def test_a_taken_port_is_named(page: PageServer, command: Command) -> None:
    assert command.run("playground", "--port", page.server_port) == 1
    for fact in (str(page.server_port), "--port"):
        assert fact in command.error


def test_a_browser_that_leaves_while_it_sends_prints_nothing(
    page: PageServer, capsys: pytest.CaptureFixture[str]
) -> None:
    request = b"POST /playground/call/ListModels HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", page.server_port)) as left:
        left.sendall(request + b"Content-Length: 9\r\n\r\n{")
        left.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # Close with a reset.
    assert ask(page, "GET", "/playground/")[0] == 200
    for thread in threading.enumerate():
        if "process_request_thread" in thread.name:
            thread.join(10)
    assert "Traceback" not in capsys.readouterr().err


def test_a_browser_that_leaves_does_not_stop_the_page(
    page: PageServer, server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.released.clear()
    request = b"POST /playground/call/ListModels HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", page.server_port)) as left:
        left.sendall(request % page.server_port + b"Content-Length: 2\r\n\r\n{}")
        assert server.entered.wait(10)
        left.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # Close with a reset.
    server.released.set()
    assert ask(page, "GET", "/playground/")[0] == 200
    assert "Traceback" not in capsys.readouterr().err
