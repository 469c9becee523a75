"""The paths of the HTTP server, and the answer to each."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from headwaiter_playground.call_rules import JSON, JSON_HEADERS
from headwaiter_proto.rules.errors import MAX_QUOTED_CHARACTERS, HeadwaiterError, InvalidInput, Unimplemented
from headwaiter_proto.rules.limits import RequestLimits
from headwaiter_server.http.api.errors import OPENAI_ERRORS
from headwaiter_server.http.api.operations import Rules
from headwaiter_server.http.api.routes import api_methods
from headwaiter_server.http.bodies import Bodies
from headwaiter_server.http.endpoint import HttpRules, authorization_of
from headwaiter_server.http.pages import description_routes, health_routes, public_routes
from headwaiter_server.http.playground import page_routes, playground_bodies, playground_methods
from headwaiter_server.http.start_page import API_LINKS, METRICS_LINKS, PLAYGROUND_LINKS, start_route
from headwaiter_server.models.served_model import ModelFacts
from headwaiter_server.requests.request_path import RequestPath
from headwaiter_server.settings.credentials import Credentials
from headwaiter_server.settings.flags import Settings

# JSON writes a byte of a text as up to 3 characters, as it does in many alphabets, and has other fields besides.
_JSON_BYTES_PER_TEXT_BYTE, _OTHER_BYTES = 3, 64 << 10
# JSON values of a request that are neither token ids nor sequences.
_OTHER_VALUES = 1000
# Bodies that are not complete may have the size of this many of the largest bodies.
_INCOMPLETE_BODIES = 16


def http_application(
    settings: Settings, path: RequestPath, credentials: Callable[[], Credentials], loop: asyncio.AbstractEventLoop
) -> Starlette:
    """Return the application: metrics and health, the requests of `http_api`, and the page of `playground`."""
    routes: list[BaseRoute] = [*public_routes(path.engine.metrics, lambda: path.ready)]
    links = dict(METRICS_LINKS)
    max_bytes = _max_body_bytes(path.limits)
    bodies = Bodies(max_bytes, _INCOMPLETE_BODIES * max_bytes)
    max_values = path.limits.tokens + path.limits.sequences + _OTHER_VALUES
    rules = HttpRules(path, loop, bodies, max_values, lambda: credentials().tokens, settings.http_timeout_s)
    if settings.http_api == "on":
        origins = settings.http_origins
        message_bytes = path.limits.message_bytes
        rules_of: dict[Rules, HttpRules] = {
            "callers": rules,
            # Values that follow the JSON need no parsing, so these bodies may be as large as gRPC's messages.
            "tensors": replace(rules, bodies=Bodies(message_bytes, _INCOMPLETE_BODIES * message_bytes)),
            "anybody": replace(rules, tokens=lambda: None),
            "admins": replace(rules, tokens=lambda: credentials().admin_tokens),
        }
        for who, method in api_methods(path):
            routes.append(method.route(rules_of[who], () if who == "admins" else origins))
        routes += [*description_routes(), *health_routes(lambda: path.ready)]
        links = API_LINKS | links
    if settings.playground == "on":
        page_rules = replace(rules, bodies=playground_bodies())
        # A token keeps other web sites out, whatever name they use: only the visitor knows it.
        own_name = settings.http_host_and_port[0] if credentials().tokens is None else None
        routes += [method.route(page_rules) for method in playground_methods(path, own_name)]
        routes += page_routes(lambda: credentials().tokens is not None)
        links = PLAYGROUND_LINKS | links

    def served_models(request: Request) -> list[ModelFacts] | None:
        tokens, directory = credentials().tokens, path.engine.directory
        if tokens is not None and tokens.tenant(authorization_of(request)) is None:
            return None
        return directory.known if directory.served_names else []

    # After the paths of the API, one of which answers POST at the same address.
    asks_for_token = credentials().tokens is not None
    routes.append(start_route(links, served_models, asks_for_token=asks_for_token, has_api=settings.http_api == "on"))
    return _application(routes)


def metrics_application(path: RequestPath) -> Starlette:
    """Return the application of the port for metrics and health alone."""
    return _application([*public_routes(path.engine.metrics, lambda: path.ready), start_route(METRICS_LINKS)])


def _application(routes: Sequence[BaseRoute]) -> Starlette:
    middleware = [Middleware(_PrintablePaths)]
    application = Starlette(routes=routes, exception_handlers={HTTPException: _refuse_path}, middleware=middleware)
    # A redirection would answer a POST with an empty body.
    application.router.redirect_slashes = False
    return application


class _PrintablePaths:
    """Refuses paths with control characters.

    Starlette's routes also match a path with a line end after it, which a proxy takes for another path.
    """

    def __init__(self, application: ASGIApp) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "http" and not scope["path"].isprintable():
            refusal = await _refuse_path(Request(scope), HTTPException(404))
            await refusal(scope, receive, send)
        else:
            await self._application(scope, receive, send)


def _max_body_bytes(limits: RequestLimits) -> int:
    # Parsing holds Python's global lock, so a body that no valid request needs is refused before it is parsed.
    return min(limits.message_bytes, _JSON_BYTES_PER_TEXT_BYTE * limits.text_bytes + _OTHER_BYTES)


async def _refuse_path(request: Request, error: Exception) -> Response:
    """Refuse an unknown path, or a wrong method, in the form of OpenAI's errors."""
    assert isinstance(error, HTTPException)
    url, status = request.url.path[:MAX_QUOTED_CHARACTERS], error.status_code
    problem: HeadwaiterError = Unimplemented(
        f"the server has no {url}: docs/reference/http.md lists its paths, which depend on --http-api and --playground"
    )
    headers = dict(JSON_HEADERS)
    if status == 405:
        # Several routes may have this path, such as that of GET / and that of POST /.
        routes = [route for route in request.app.routes if route.matches(request.scope)[0] != Match.NONE]
        methods = {method for route in routes for method in getattr(route, "methods", None) or ()}
        # The paths of the API take OPTIONS only as the question that a browser asks for a script.
        headers["Allow"] = ", ".join(sorted(methods - {"HEAD", "OPTIONS"}))
        problem = InvalidInput(f"{url} does not take {request.method}: use {headers['Allow'].replace(', ', ' or ')}")
    return Response(OPENAI_ERRORS.write(problem, status, (), {}), status, headers, JSON)
