"""The pages that need no token: metrics for Prometheus, and health for orchestrators."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from headwaiter_playground.call_rules import JSON
from headwaiter_proto.rules.errors import Unavailable
from headwaiter_server.http.api.openapi import page, written_document
from headwaiter_server.http.paced_response import PacedResponse
from headwaiter_server.metrics.page import Page, SharedPages, samples_of

# The page of the API loads nothing.
_PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def public_routes(write_metrics: Callable[[str], Awaitable[Page]], is_ready: Callable[[], bool]) -> list[Route]:
    """Return the routes of the metrics and of the health checks.

    Args:
        write_metrics: returns the page of metrics, given the header `accept` of a scrape; raises
            Unavailable if the engine has ended.
        is_ready: returns whether the server answers requests.
    """
    pages = SharedPages(write_metrics)

    async def metrics(request: Request) -> Response:
        try:
            written = await pages.get(request.headers.get("accept", ""))
        except Unavailable as error:
            return PlainTextResponse(f"{error}\n", 503)
        names = request.query_params.getlist("name[]")
        content = samples_of(written.content, names) if names else written.content
        return PacedResponse(content, headers={"content-type": written.content_type})

    async def live(_: Request) -> Response:
        return JSONResponse({"status": "live"})

    async def ready(_: Request) -> Response:
        serves = is_ready()
        return JSONResponse({"status": "ready" if serves else "not ready"}, 200 if serves else 503)

    # The servers whose interfaces HTTP has answer health checks at /health and /ping.
    ready_routes = [Route(path, ready) for path in ("/health/ready", "/health", "/ping")]
    return [Route("/metrics", metrics), Route("/health/live", live), *ready_routes]


def description_routes() -> list[Route]:
    """Return the routes of the description of the API, in OpenAPI and as a page for people."""

    async def openapi(_: Request) -> Response:
        return PacedResponse(written_document(), media_type=JSON)

    async def docs(_: Request) -> Response:
        return PacedResponse(page(), media_type="text/html", headers={"Content-Security-Policy": _PAGE_POLICY})

    return [Route("/openapi.json", openapi), Route("/docs", docs)]


def health_routes(is_ready: Callable[[], bool]) -> list[Route]:
    """Return the routes of the health checks of the Open Inference Protocol."""

    async def live(_: Request) -> Response:
        return JSONResponse({"live": True})

    async def ready(_: Request) -> Response:
        serves = is_ready()
        return JSONResponse({"ready": serves}, 200 if serves else 503)

    return [Route("/v2/health/live", live), Route("/v2/health/ready", ready)]
