"""The paths of the HTTP server, and the answer to each."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from headwaiter_playground.call_rules import JSON, JSON_HEADERS
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import HeadwaiterError, InvalidInput, Unimplemented
from headwaiter_proto.rules.limits import RequestLimits
from headwaiter_server.http import openai, scores, tei
from headwaiter_server.http.bodies import Bodies
from headwaiter_server.http.endpoint import Endpoint, HttpRules, Method
from headwaiter_server.http.pages import public_routes
from headwaiter_server.http.playground import page_routes, playground_bodies, playground_methods
from headwaiter_server.requests.call import Call
from headwaiter_server.requests.request_path import RequestPath, reserve_nothing
from headwaiter_server.settings.credentials import Tokens
from headwaiter_server.settings.flags import Settings

# JSON writes a byte of a text as up to 3 characters, as it does in many alphabets, and has other fields besides.
_JSON_BYTES_PER_TEXT_BYTE, _OTHER_BYTES = 3, 64 << 10
# JSON values of a request that are neither token ids nor sequences.
_OTHER_VALUES = 1000
# Bodies that are not complete may have the size of this many of the largest bodies.
_INCOMPLETE_BODIES = 16


def http_application(
    settings: Settings, path: RequestPath, tokens: Callable[[], Tokens | None], loop: asyncio.AbstractEventLoop
) -> Starlette:
    """Return the application: metrics and health, the requests of `http_api`, and the page of `playground`."""
    routes: list[BaseRoute] = [*public_routes(path.engine.metrics, lambda: path.ready)]
    max_bytes = _max_body_bytes(path.limits)
    bodies = Bodies(max_bytes, _INCOMPLETE_BODIES * max_bytes)
    max_values = path.limits.tokens + path.limits.sequences + _OTHER_VALUES
    rules = HttpRules(path, loop, bodies, max_values, tokens, settings.http_timeout_s)
    if settings.http_api == "on":
        routes += [_route(rules, method) for method in _api_methods(path)]
    if settings.playground == "on":
        page_rules = replace(rules, bodies=playground_bodies())
        # A token keeps other web sites out, whatever name they use: only the visitor knows it.
        own_name = settings.http_host_and_port[0] if tokens() is None else None
        routes += [_route(page_rules, method) for method in playground_methods(path, own_name)]
        routes += page_routes()
    return _application(routes)


def metrics_application(path: RequestPath) -> Starlette:
    """Return the application of the port for metrics and health alone."""
    return _application(public_routes(path.engine.metrics, lambda: path.ready))


def _application(routes: Sequence[BaseRoute]) -> Starlette:
    application = Starlette(routes=routes, exception_handlers={HTTPException: _refuse_path})
    # A redirection would answer a POST with an empty body.
    application.router.redirect_slashes = False
    return application


def _api_methods(path: RequestPath) -> list[Method[Any]]:
    read, write = scores.read_rerank_request, scores.rerank_reply
    return [
        _embeddings(path),
        _models(path),
        _embed(path, "POST /embed"),
        _embed(path, "POST /"),
        _classify(path),
        _rerank(path, "POST /v1/rerank", read, write, openai.error_body),
        _rerank(path, "POST /v2/rerank", read, write, openai.error_body),
        _rerank(path, "POST /rerank", scores.read_tei_rerank_request, scores.tei_rerank_reply, tei.error_body),
    ]


def _max_body_bytes(limits: RequestLimits) -> int:
    # Parsing holds Python's global lock, so a body that no valid request needs is refused before it is parsed.
    return min(limits.message_bytes, _JSON_BYTES_PER_TEXT_BYTE * limits.text_bytes + _OTHER_BYTES)


def _route(rules: HttpRules, method: Method[Any]) -> Route:
    verb, _, url = method.name.partition(" ")
    return Route(url, Endpoint(rules, method), methods=[verb])


async def _encode(path: RequestPath, request: pb.EncodeRequest, call: Call) -> bytes:
    """Return pooled vectors, the only output that a request over HTTP can have."""
    try:
        return await path.encode_packed(request, call, reserve_nothing)
    except InvalidInput as error:
        if error.field != "output.pooled":
            raise
        raise Unimplemented(
            "the model has no pooled vectors: export it with --pooling, or name another model"
        ) from None


def _embeddings(path: RequestPath) -> Method[openai.EmbeddingsRequest]:
    return Method(
        "POST /v1/embeddings",
        openai.read_embeddings_request,
        lambda request, call: _encode(path, request.encode, call),
        lambda request, reply: openai.embeddings_reply(pb.EncodeResponse.FromString(reply), base64=request.base64),
        openai.error_body,
    )


def _models(path: RequestPath) -> Method[None]:
    created_s = int(time.time())

    async def list_models(_: None, call: Call) -> bytes:
        manifests = {each.name: each.manifest for each in path.engine.directory.served}
        longest = {name: each.max_text_tokens or each.max_tokens for name, each in manifests.items()}
        return openai.models_reply(longest, created_s)

    return Method("GET /v1/models", lambda _: None, list_models, lambda _, reply: reply, openai.error_body)


def _embed(path: RequestPath, name: str) -> Method[pb.EncodeRequest]:
    return Method(
        name,
        tei.read_embed_request,
        lambda request, call: _encode(path, request, call),
        lambda _, reply: tei.embed_reply(pb.EncodeResponse.FromString(reply)),
        tei.error_body,
    )


def _rerank(
    path: RequestPath,
    name: str,
    read: Callable[[bytes], scores.RerankRequest],
    write: Callable[[scores.RerankRequest, pb.ClassifyResponse], bytes],
    write_error: Callable[[HeadwaiterError, int], bytes],
) -> Method[scores.RerankRequest]:
    return Method(
        name,
        read,
        lambda request, call: path.classify(request.encode, call, pb.TASK_RERANK),
        lambda request, reply: write(request, pb.ClassifyResponse.FromString(reply)),
        write_error,
    )


def _classify(path: RequestPath) -> Method[pb.EncodeRequest]:
    return Method(
        "POST /v1/classify",
        scores.read_classify_request,
        lambda request, call: path.classify(request, call, pb.TASK_CLASSIFY),
        lambda _, reply: scores.classify_reply(pb.ClassifyResponse.FromString(reply)),
        openai.error_body,
    )


async def _refuse_path(request: Request, error: Exception) -> Response:
    """Refuse an unknown path, or a wrong method, in the form of OpenAI's errors."""
    assert isinstance(error, HTTPException)
    url, status = request.url.path[:100], error.status_code
    problem: HeadwaiterError = Unimplemented(
        f"the server has no {url}: see docs/http.md for its paths, which depend on --http-api and --playground"
    )
    if status == 405:
        allowed = (error.headers or {}).get("Allow", "")
        problem = InvalidInput(f"{url} does not take {request.method}: use {allowed}")
    return Response(openai.error_body(problem, status), status, {**(error.headers or {}), **JSON_HEADERS}, JSON)
