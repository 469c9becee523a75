"""Serve the playground page on this machine, and pass the calls of the page on to a server over gRPC.

The page is bound to 127.0.0.1, so other computers cannot open it. Every user of this computer can, and then calls the
server with the operator's token. Other web sites in the browser cannot: see `headwaiter_playground.call_rules`.
"""

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from google.protobuf.message import Message

from headwaiter_playground.call_rules import (
    JSON,
    JSON_HEADERS,
    MAX_BODY_BYTES,
    STATUSES,
    check_host,
    check_media_type,
)
from headwaiter_playground.json_calls import JSON_CALLS, error_body
from headwaiter_playground.page import PageFile, page_file
from headwaiter_proto.rules.errors import HeadwaiterError, InvalidInput, MessageTooLarge, Transient, Unimplemented
from headwaiter_proto.rules.status import http_status_of

_HOST = "127.0.0.1"
_PAGE = "/playground/"
_CALL = "/playground/call/"
# A length of more digits is too large, and is not read as a number.
_MAX_LENGTH_DIGITS = 18


class NoSuchPath(Unimplemented):
    """The page has no such file or call."""


_STATUSES: dict[type[HeadwaiterError], int] = {
    NoSuchPath: HTTPStatus.NOT_FOUND,
    **STATUSES,
}

# Makes a call: takes the name of a method, its request and the class of its reply; returns the reply.
Caller = Callable[[str, Message, type[Message]], Message]


class PageServer(ThreadingHTTPServer):
    """Serves the page at `url`.

    Args:
        call: makes the calls of the page; several threads call it at the same time.
        port: the port; 0 takes a free one.
        call_with: returns a function that makes calls with the header `Authorization` of the browser in place of the
            operator's token; None if the header has no effect.

    Raises:
        OSError: the port is taken.
    """

    daemon_threads = True

    def __init__(self, call: Caller, port: int, call_with: Callable[[str], Caller] | None = None) -> None:
        self._call, self._call_with = call, call_with
        super().__init__((_HOST, port), _Handler)

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{_HOST}:{self.server_port}{_PAGE}"

    def caller(self, authorization: str) -> Caller:
        """Return the function that makes the calls of a browser that sends this header `Authorization`, or none."""
        return self._call_with(authorization) if authorization and self._call_with else self._call


class _Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection."""

    server: PageServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "headwaiter-client", ""
    disable_nagle_algorithm = True  # The headers and the content are two writes.
    timeout = 60.0  # Seconds that a connection may be idle.

    def handle(self) -> None:
        """Answer until the connection ends."""
        with suppress(ConnectionError):  # The browser has left the page.
            super().handle()

    def do_GET(self) -> None:
        """Answer with a file of the page."""
        try:
            self._check_host()
            self._send_file()
        except HeadwaiterError as error:
            self.close_connection = True
            self._refuse(error)

    def _send_file(self) -> None:
        path = self.path.partition("?")[0]
        if path in ("/", _PAGE.rstrip("/")):
            self._send(HTTPStatus.TEMPORARY_REDIRECT, b"", {"Location": _PAGE})
        elif path == "/metrics":
            # A server's metrics are at its own HTTP port. This status is no error, which the browser would log.
            self._send(HTTPStatus.NO_CONTENT, b"", {})
        elif path.startswith(_PAGE) and (file := self._page_file(path.removeprefix(_PAGE))):
            self._send(file.status, file.content, file.headers)
        else:
            raise NoSuchPath("there is no such page: open /playground/")

    def _page_file(self, name: str) -> PageFile | None:
        return page_file(name, self.headers.get("Accept-Encoding", ""), self.headers.get("If-None-Match", ""))

    def do_POST(self) -> None:
        """Answer with the reply to a call."""
        # The body of a refused request is not read. On a connection that stays open, it would count as a request.
        self.close_connection = True
        try:
            self._check_host()
            path = self.path.partition("?")[0]
            call = JSON_CALLS.get(path.removeprefix(_CALL)) if path.startswith(_CALL) else None
            if call is None:
                raise NoSuchPath("the playground does not make this call: open /playground/")
            check_media_type(self.headers.get("Content-Type", ""))
            body = self.rfile.read(self._body_bytes())
            self.close_connection = False
            make_call = self.server.caller(self.headers.get("Authorization", ""))
            reply = make_call(call.method, call.read_request(body), call.reply_class)
            self._send(HTTPStatus.OK, call.write_reply(reply), {"Content-Type": JSON, **JSON_HEADERS})
        except HeadwaiterError as error:
            self._refuse(error)

    def _body_bytes(self) -> int:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise InvalidInput("the header Content-Length is missing: send the number of bytes of the body")
        if len(length) > _MAX_LENGTH_DIGITS or int(length) > MAX_BODY_BYTES:
            raise MessageTooLarge(f"the body has more than {MAX_BODY_BYTES} bytes: send fewer or shorter sequences")
        return int(length)

    def _check_host(self) -> None:
        check_host(self.headers.get("Host", ""), _HOST, f"open {self.server.url}")

    def _refuse(self, error: HeadwaiterError) -> None:
        status = _STATUSES.get(type(error)) or http_status_of(error)
        headers = {"Content-Type": JSON, **JSON_HEADERS}
        if isinstance(error, Transient):
            # The page makes the call again after this time.
            headers["Retry-After"] = str(math.ceil(error.retry_after_s or 1.0))
        self._send(status, error_body(error), headers)

    def _send(self, status: int, content: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status not in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
            self.send_header("Content-Length", str(len(content)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        """Print nothing: the page shows its errors."""
