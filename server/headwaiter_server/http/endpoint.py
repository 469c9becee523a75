"""The part that all HTTP requests share: the body, the token, limits, deadlines, log lines, metrics, and errors.

HTTP has a thread and an event loop of its own, so that slow callers and the work of reading and writing JSON do not
delay gRPC. A request is read in this loop, answered in the loop of the server, and written in this loop.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from google.protobuf.message import Message
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from headwaiter_playground.call_rules import JSON, JSON_HEADERS, STATUSES, compressed
from headwaiter_proto.rules.errors import (
    MAX_QUOTED_CHARACTERS,
    DeadlineExceeded,
    HeadwaiterError,
    InvalidInput,
    MessageTooLarge,
    Transient,
    Unauthenticated,
    without_frames,
)
from headwaiter_proto.rules.status import http_status_of
from headwaiter_server.http.bodies import Bodies, Disconnected, SlowBody, UnsupportedEncoding, host_of
from headwaiter_server.http.json_size import check_value_count
from headwaiter_server.http.paced_response import PacedResponse
from headwaiter_server.requests.call import Call, OutcomeRecorder, clock
from headwaiter_server.requests.request_path import RequestPath
from headwaiter_server.settings.credentials import Tokens

log = logging.getLogger(__name__)

# Headers of replies that scripts of other web sites may read.
_READABLE_HEADERS = (
    "headwaiter-truncated",
    "inference-header-content-length",
    "retry-after",
    "retry-after-ms",
    "x-request-id",
    "x-should-retry",
)
# Proxies limit the headers of a reply, often to 4 KiB.
_MAX_TRUNCATED_INDICES = 100
_LARGE_BYTES = 1 << 20
# A body of this size is read anyway.
_SMALL_BODY_BYTES = 64 << 10
# Characters of ids that headers hold as they are; others are percent-encoded.
_ID_CHARACTERS = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
_Question = TypeVar("_Question")


class AmbiguousLength(InvalidInput):
    """The headers give two lengths of the body, so a proxy may have seen another request."""


# The statuses of errors that only HTTP has.
_STATUSES: dict[type[HeadwaiterError], int] = {SlowBody: 408, UnsupportedEncoding: 415, **STATUSES}


@dataclass(frozen=True, slots=True)
class Written:
    """A reply that is not JSON alone: its body, its media type and its headers."""

    body: bytes
    media_type: str
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Method(Generic[_Question]):
    """What one path of the server does.

    Attributes:
        name: the HTTP method and the path, for logs and metrics.
        read: returns what a request with a body asks.
        answer: returns the answer, bytes or a message; called in the event loop of the server.
        write: returns the body of the reply, given the answer.
        write_error: returns the body of an error, given its HTTP status, and the question if it could be read.
        admit: raises an error if a request with the right token must be refused before its body is read.
        route_path: the path; empty for that of the name.
        json_bytes: returns how many bytes at the start of a body are JSON, given the request and the size of the body.
        compresses: whether large replies are compressed for callers that take gzip.
    """

    name: str
    read: Callable[[Request, bytes], _Question]
    answer: Callable[[_Question, Call], Awaitable[Any]]
    write: Callable[[_Question, Any], "bytes | Written"]
    write_error: Callable[[HeadwaiterError, int, _Question | None], bytes]
    admit: Callable[[Request], None] = lambda _: None
    route_path: str = ""
    json_bytes: Callable[[Request, int], int] = lambda _, size_bytes: size_bytes
    compresses: bool = False

    @property
    def verb(self) -> str:
        """The HTTP method."""
        return self.name.partition(" ")[0]

    @property
    def path(self) -> str:
        """The path."""
        return self.route_path or self.name.partition(" ")[2]

    def at(self, path: str) -> "Method[_Question]":
        """Return the same method at another path; both count as one in logs and metrics."""
        return replace(self, route_path=path)

    def route(self, rules: "HttpRules", origins: Sequence[str] = ()) -> Route:
        """Return the route that answers the method, also to scripts of web sites with these origins."""
        verb, endpoint = self.verb, Endpoint(rules, self)
        if not origins:
            return Route(self.path, endpoint, methods=[verb])
        allowed = CORSMiddleware(
            endpoint, allow_origins=origins, allow_methods=[verb], allow_headers=["*"], expose_headers=_READABLE_HEADERS
        )
        return Route(self.path, allowed, methods=[verb, "OPTIONS"])


@dataclass(frozen=True)
class HttpRules:
    """The rules of all requests.

    Attributes:
        path: answers the requests of all protocols.
        loop: the event loop of the server, in which `path` works.
        bodies: reads the bodies of requests.
        max_values: the most JSON values in a body.
        tokens: returns the bearer tokens that requests may carry now; None if they need none.
        timeout_s: seconds until a request must be answered, and until a caller must have read the reply.
    """

    path: RequestPath
    loop: asyncio.AbstractEventLoop
    bodies: Bodies
    max_values: int
    tokens: Callable[[], Tokens | None]
    timeout_s: float


class Endpoint:
    """Answers the requests to one path; an ASGI application."""

    def __init__(self, rules: HttpRules, method: Method[Any]) -> None:
        self._rules, self._method = rules, method

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request, arrived_s = Request(scope, receive), clock()
        if request.method == "OPTIONS":  # Without the headers of a browser's question, which never come here.
            raise HTTPException(405)
        call = Call(self._method.name, arrived_s, arrived_s + self._rules.timeout_s, host_of(request))
        call.traceparent, call.http_status = request.headers.get("traceparent", ""), _http_status
        try:
            with suppress(Disconnected):
                response = await self._respond(request, call)
                # Returns when the caller has read the reply, or was cut off; see `Connections`.
                await response(scope, receive, send)
        finally:
            self._rules.loop.call_soon_threadsafe(call.held.close)

    async def _respond(self, request: Request, call: Call) -> Response:
        question: Any = None
        problem: Exception | None = None
        body_read = False
        try:
            _check_headers(request)
            self._check_token(request, call)
            self._method.admit(request)
            body = await self._rules.bodies.read(request, call.deadline_s)
            body_read, call.request_bytes = True, len(body)
            check_value_count(body[: self._method.json_bytes(request, len(body))], self._rules.max_values)
            question = self._method.read(request, body)
        except Disconnected:
            raise
        except Exception as error:  # noqa: BLE001 - the recorder below logs and counts it
            problem = error
        try:
            # The server's loop counts and logs all failures, those of reading too.
            answered = asyncio.run_coroutine_threadsafe(self._answer(question, problem, call), self._rules.loop)
            answer = await _unless_disconnected(asyncio.wrap_future(answered), request)
        except HeadwaiterError as error:
            without_frames(error)
            refusal = self._refuse(error, call, question)
            if not body_read and _is_large(request):
                # Otherwise a caller without a token could go on to send, and the server to read.
                refusal.headers["connection"] = "close"
            return refusal
        # Writing a large reply takes long; a thread keeps the loop free for other requests and health checks.
        size_bytes = answer.ByteSize() if isinstance(answer, Message) else len(answer)
        large = size_bytes > _LARGE_BYTES
        write = self._method.write
        try:
            written = await asyncio.to_thread(write, question, answer) if large else write(question, answer)
        except Exception as error:
            log.exception("%s: the reply could not be written", call.describe())
            return self._refuse(HeadwaiterError(f"the server failed: {type(error).__name__}"), call, question)
        if isinstance(written, bytes):
            written = Written(written, JSON, {})
        headers = {"x-request-id": quote(call.request_id, safe=_ID_CHARACTERS), **JSON_HEADERS, **written.headers}
        if call.truncated:
            headers["headwaiter-truncated"] = _shown_indices(call.truncated)
        body = written.body
        if self._method.compresses:
            smaller = await asyncio.to_thread(compressed, body, request.headers.get("accept-encoding", ""))
            if smaller is not None:
                headers["content-encoding"] = "gzip"
                body = smaller
        return PacedResponse(body, media_type=written.media_type, headers=headers)

    async def _answer(self, question: Any, problem: Exception | None, call: Call) -> Any:
        path = self._rules.path
        with OutcomeRecorder(call, path.recorder):
            if problem is not None:
                raise problem
            path.call_limit.hold(call.holder, call.held)
            try:
                async with asyncio.timeout_at(call.deadline_s):
                    return await self._method.answer(question, call)
            except TimeoutError:
                raise DeadlineExceeded(
                    f"the answer was not ready within the {self._rules.timeout_s:g} s of --http-timeout-s: ask for less"
                ) from None

    def _check_token(self, request: Request, call: Call) -> None:
        tokens = self._rules.tokens()
        if tokens is None:
            return
        given = authorization_of(request)
        tenant = tokens.tenant(given)
        if tenant is None:
            fault = "is not the server's bearer token" if given else "is missing"
            raise Unauthenticated(f"the header Authorization {fault}: send Authorization: Bearer TOKEN")
        call.tenant = tenant

    def _refuse(self, error: HeadwaiterError, call: Call, question: Any) -> Response:
        status = _http_status(error)
        headers = {"x-request-id": quote(call.request_id, safe=_ID_CHARACTERS), **JSON_HEADERS}
        if isinstance(error, Transient):
            retry_after_s = error.retry_after_s or 1.0
            headers |= {"retry-after": str(math.ceil(retry_after_s)), "retry-after-ms": f"{1e3 * retry_after_s:.0f}"}
        else:
            headers["x-should-retry"] = "false"  # OpenAI's client would send a request with status 5xx again.
        if isinstance(error, MessageTooLarge | SlowBody | AmbiguousLength):
            headers["connection"] = "close"  # The rest of the body is not read.
        if isinstance(error, Unauthenticated):
            headers["www-authenticate"] = "Bearer"
        return Response(self._method.write_error(error, status, question), status, headers, JSON)


def authorization_of(request: Request) -> str:
    """Return the header Authorization of a request; empty if there is none."""
    given: str = request.headers.get("authorization", "")
    if not given and (key := request.headers.get("api-key")):
        given = f"Bearer {key}"  # As Azure's clients send it.
    return given


def _shown_indices(indices: Collection[int]) -> str:
    """Return indices as a header holds them: with commas between them, and dots in place of those beyond the limit."""
    shown = [str(index) for index in islice(indices, _MAX_TRUNCATED_INDICES)]
    return ",".join([*shown, *(["..."] if len(indices) > len(shown) else [])])


def _is_large(request: Request) -> bool:
    """Return whether a body may be large: its length is not known, or above `_SMALL_BODY_BYTES`."""
    length = request.headers.get("content-length", "")
    known = length.isdecimal() and len(length) < 20
    return "transfer-encoding" in request.headers or (bool(length) and not (known and int(length) <= _SMALL_BODY_BYTES))


def _http_status(error: HeadwaiterError) -> int:
    return _STATUSES.get(type(error)) or http_status_of(error)


def _check_headers(request: Request) -> None:
    if "transfer-encoding" in request.headers and "content-length" in request.headers:
        raise AmbiguousLength("the request has the headers Transfer-Encoding and Content-Length: send one of them")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        shown = encoding[:MAX_QUOTED_CHARACTERS]
        raise UnsupportedEncoding(f"the body has the Content-Encoding {shown!r}: send the body without compression")


async def _unless_disconnected(answering: "asyncio.Future[Any]", request: Request) -> Any:
    """Return the answer; cancel the request when the caller closes its connection.

    Raises:
        Disconnected: the caller has closed its connection.
    """
    watching = asyncio.create_task(_disconnected(request))
    watched: set[asyncio.Future[Any]] = {answering, watching}
    try:
        await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            raise Disconnected
        return answering.result()
    finally:
        watching.cancel()
        answering.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
