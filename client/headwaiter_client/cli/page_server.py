"""Serve the playground page on this machine, and pass the calls of the page on to a server over gRPC.

Other users' pages in the same browser must not reach the server through this address: it is bound to 127.0.0.1, it
checks the header `Host`, because a foreign name may resolve to 127.0.0.1, and it takes only JSON, which a foreign page
may not send without the consent of this server.
"""

from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from google.protobuf.message import Message

from headwaiter_playground.json_calls import JSON_CALLS, JsonCall, error_body
from headwaiter_playground.page import PAGE_HEADERS, page_file
from headwaiter_proto.rules.errors import HeadwaiterError, InvalidInput, MessageTooLarge, Unimplemented
from headwaiter_proto.rules.status import http_status_of

_HOST = "127.0.0.1"
_PAGE = "/playground/"
_CALL = "/playground/call/"
_JSON = "application/json"
_MAX_BODY_BYTES = 4 << 20

# Makes a call: takes the name of a method, its request and the class of its reply; returns the reply.
Caller = Callable[[str, Message, type[Message]], Message]


class PageServer(ThreadingHTTPServer):
    """Serves the page at `url`.

    Args:
        call: makes the calls of the page; several threads call it at the same time.
        port: the port; 0 takes a free one.

    Raises:
        OSError: the port is taken.
    """

    daemon_threads = True

    def __init__(self, call: Caller, port: int) -> None:
        self.call = call
        super().__init__((_HOST, port), _Handler)
        self.hosts = {f"{name}:{self.server_port}" for name in (_HOST, "localhost")}

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{_HOST}:{self.server_port}{_PAGE}"


class _Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection."""

    server: PageServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "headwaiter-client", ""
    disable_nagle_algorithm = True  # The headers and the content are two writes.
    timeout = 60.0  # Seconds that a connection may be idle.

    def do_GET(self) -> None:
        """Answer with a file of the page."""
        if not self._host_is_known():
            return
        path = self.path.partition("?")[0]
        if path in ("/", _PAGE.rstrip("/")):
            self._send(HTTPStatus.TEMPORARY_REDIRECT, b"", {"Location": _PAGE})
        elif path == "/metrics":
            # A server's metrics are at its own HTTP port. This status is no error, which the browser would log.
            self._send(HTTPStatus.NO_CONTENT, b"", {})
        elif path.startswith(_PAGE) and (file := page_file(path.removeprefix(_PAGE))):
            self._send(HTTPStatus.OK, file.content, {"Content-Type": file.media_type, **PAGE_HEADERS})
        else:
            self._refuse(HTTPStatus.NOT_FOUND, Unimplemented("there is no such page: open /playground/"))

    def do_POST(self) -> None:
        """Answer with the reply to a call."""
        # The body of a refused request is not read, so that its bytes would look like another request.
        self.close_connection = True
        if not self._host_is_known():
            return
        call = JSON_CALLS.get(self.path.removeprefix(_CALL)) if self.path.startswith(_CALL) else None
        length = self.headers.get("Content-Length", "")
        if call is None:
            self._refuse(HTTPStatus.NOT_FOUND, Unimplemented("the playground does not make this call"))
        elif self.headers.get_content_type() != _JSON:
            error: HeadwaiterError = InvalidInput(f"the header Content-Type is not {_JSON}: send JSON")
            self._refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, error)
        elif not length.isdecimal():
            error = InvalidInput("the header Content-Length is missing: send the number of bytes of the body")
            self._refuse(HTTPStatus.LENGTH_REQUIRED, error)
        elif int(length) > _MAX_BODY_BYTES:
            error = MessageTooLarge(f"the body has more than {_MAX_BODY_BYTES} bytes: send fewer or shorter texts")
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, error)
        else:
            body = self.rfile.read(int(length))
            self.close_connection = False
            self._answer(call, self.path.removeprefix(_CALL), body)

    def _answer(self, call: JsonCall, method: str, body: bytes) -> None:
        try:
            reply = call.write_reply(self.server.call(method, call.read_request(body), call.reply_class))
        except HeadwaiterError as error:
            self._refuse(http_status_of(error), error)
        else:
            self._send(HTTPStatus.OK, reply, {"Content-Type": _JSON, "Cache-Control": "no-store"})

    def _host_is_known(self) -> bool:
        """Return whether the browser asked for this machine by name; otherwise refuse the request."""
        if self.headers.get("Host") in self.server.hosts:
            return True
        self.close_connection = True
        self._refuse(
            HTTPStatus.FORBIDDEN, InvalidInput(f"the header Host is not this server's: open {self.server.url}")
        )
        return False

    def _refuse(self, status: int, error: HeadwaiterError) -> None:
        self._send(status, error_body(error), {"Content-Type": _JSON})

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        with suppress(ConnectionError):  # The browser has left the page.
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if status != HTTPStatus.NO_CONTENT:
                self.send_header("Content-Length", str(len(content)))
            if self.close_connection:
                self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        """Print nothing: the page shows its errors."""
