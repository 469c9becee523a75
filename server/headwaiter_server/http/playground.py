"""The playground: the files of the page, and the calls that the page makes."""

from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headwaiter_playground.call_rules import JSON, JSON_HEADERS, MAX_BODY_BYTES, check_host, check_media_type
from headwaiter_playground.json_calls import JSON_CALLS, JsonCall, error_body
from headwaiter_playground.page import page_file
from headwaiter_proto.rules.errors import MessageTooLarge, Overloaded, Unimplemented
from headwaiter_server.concurrency.rate_limit import RateLimit
from headwaiter_server.http.bodies import Bodies
from headwaiter_server.http.endpoint import Method
from headwaiter_server.http.paced_response import PacedResponse
from headwaiter_server.requests.call import Call, clock
from headwaiter_server.requests.encoder_methods import AnswerMessage, EncoderMethods
from headwaiter_server.requests.request_path import RequestPath

# People read the page, so its calls are few and small. The limits hold for all callers of a process together: reading
# and writing large JSON holds Python's global lock, which the threads of gRPC need too. Writing a reply of 8 MiB takes
# 80 ms, so that the replies of a second take 160 ms. Front ends do not divide the limits: the parts of twelve would be
# smaller than one large reply, and than the calls of two people who type.
_CALLS_PER_S = 50
_INCOMPLETE_BODIES = 64
_MAX_REPLY_BYTES = 8 << 20
_REPLY_BYTES_PER_S = 16 << 20


def page_routes(asks_for_token: Callable[[], bool]) -> list[Route]:
    """Return the routes of the page's files, which need no token; `asks_for_token` tells whether the calls do."""

    async def send_file(request: Request) -> Response:
        asked, name = request.headers, request.path_params.get("name", "")
        file = page_file(
            name,
            asked.get("accept-encoding", ""),
            asked.get("if-none-match", ""),
            asks_for_token=asks_for_token(),
        )
        if file is None:
            error = Unimplemented("the page has no such file: open /playground/")
            return Response(error_body(error), 404, JSON_HEADERS, JSON)
        return PacedResponse(file.content, file.status, file.headers)

    async def redirect(_: Request) -> Response:
        # A relative address, because a proxy may serve the page under another path.
        return Response(status_code=307, headers={"Location": "playground/"})

    return [
        Route("/playground", redirect),
        Route("/playground/", send_file),
        Route("/playground/{name}", send_file),
    ]


def playground_bodies() -> Bodies:
    """Return the limits of the bodies of the page's calls."""
    return Bodies(MAX_BODY_BYTES, _INCOMPLETE_BODIES * MAX_BODY_BYTES)


def playground_methods(path: RequestPath, own_name: str | None) -> list[Method[Any]]:
    """Return the calls that the page may make.

    Args:
        path: answers the requests.
        own_name: the host that a browser may ask for, besides IP addresses and localhost; None for any host.
    """
    answers = EncoderMethods(path).by_name
    # The first limit is used in the thread of HTTP only, the second one in the thread of the server only.
    call_limit, reply_limit = RateLimit(clock), RateLimit(clock)

    def admit(request: Request) -> None:
        if own_name is not None:
            remedy = "set --token-file, or open the page by an IP address"
            check_host(request.headers.get("host", ""), own_name, remedy)
        check_media_type(request.headers.get("content-type", ""))
        if not call_limit.admit("calls", _CALLS_PER_S):
            raise Overloaded(
                f"the playground answers at most {_CALLS_PER_S} calls per second: try again in 1 s, or call the "
                "server over gRPC",
                retry_after_s=1.0,
                limit=_CALLS_PER_S,
            )

    return [_method(name, call, answers[call.method], admit, reply_limit) for name, call in JSON_CALLS.items()]


def _method(
    name: str, json_call: JsonCall, answer: AnswerMessage, admit: Callable[[Request], None], reply_limit: RateLimit
) -> Method[Any]:
    async def answer_small(request: Any, call: Call) -> bytes:
        reply = await answer(request, call)
        if len(reply) > _MAX_REPLY_BYTES:
            raise MessageTooLarge(
                f"the reply has {len(reply)} bytes, and the playground takes at most {_MAX_REPLY_BYTES}: send fewer or "
                "shorter sequences, or ask for fewer layers or heads",
                limit=_MAX_REPLY_BYTES,
                actual=len(reply),
            )
        if not reply_limit.admit("bytes", _REPLY_BYTES_PER_S, len(reply)):
            raise Overloaded(
                f"the playground sends at most {_REPLY_BYTES_PER_S} bytes of replies per second: try again in 1 s, or "
                "call the server over gRPC",
                retry_after_s=1.0,
                limit=_REPLY_BYTES_PER_S,
            )
        return reply

    return Method(
        f"POST /playground/call/{name}",
        lambda _, body: json_call.read_request(body),
        answer_small,
        lambda _, reply: json_call.write_reply(json_call.reply_class.FromString(reply)),
        lambda error, *_: error_body(error),
        admit,
        compresses=True,
    )
