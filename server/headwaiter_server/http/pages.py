"""The pages that need no token: metrics for Prometheus, and health for orchestrators."""

import asyncio
from collections.abc import Callable

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


def public_routes(registry: CollectorRegistry, is_ready: Callable[[], bool]) -> list[Route]:
    """Return the routes of the metrics and of the health checks."""

    async def metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        # Writing all series takes milliseconds; a thread keeps the event loop free.
        return Response(await asyncio.to_thread(encode, registry), headers={"content-type": content_type})

    async def live(_: Request) -> Response:
        return JSONResponse({"status": "live"})

    async def ready(_: Request) -> Response:
        serves = is_ready()
        return JSONResponse({"status": "ready" if serves else "not ready"}, 200 if serves else 503)

    return [Route("/metrics", metrics), Route("/health/live", live), Route("/health/ready", ready)]
