"""The page of `/`: what the server offers, with links and an example, for people and for programs."""

import json
import shlex
from collections.abc import Callable, Sequence
from html import escape

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

# Relative, because a proxy may serve the page under another path.
METRICS_LINKS = {"metrics": "metrics for Prometheus", "health/ready": "whether the server takes requests"}
API_LINKS = {"docs": "the paths for requests, and their fields", "openapi.json": "the same paths in OpenAPI"}
PLAYGROUND_LINKS = {"playground/": "the playground: attention, similarity, latency and cost of the models"}

# The page loads nothing.
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
}
_STYLE = (
    ":root{color-scheme:light dark}body{font:16px/1.6 system-ui,sans-serif;max-width:46rem;margin:2rem auto;"
    "padding:0 1rem}pre{padding:1rem;overflow-x:auto;border:1px solid;border-radius:8px}"
)


def start_route(
    links: dict[str, str], model_names: Callable[[Request], Sequence[str] | None], *, has_api: bool
) -> Route:
    """Return the route of `/`, as HTML for a browser and otherwise as JSON.

    Args:
        links: what each relative address has.
        model_names: returns the names of the models, the default one first, or None for a caller without the token.
        has_api: whether the server takes requests over HTTP, of which the page has an example.
    """

    async def start(request: Request) -> Response:
        names = model_names(request)
        headers = {"Vary": "Accept, Authorization", "Cache-Control": "no-store"}
        if "text/html" not in request.headers.get("accept", ""):
            about = {"links": links} if names is None else {"links": links, "models": names}
            return JSONResponse(about, headers=headers)
        examples = _examples(str(request.base_url).rstrip("/"), names) if has_api else {}
        return HTMLResponse(_page(links, names, examples), headers={**headers, **_PAGE_HEADERS})

    return Route("/", start)


def _examples(address: str, names: Sequence[str] | None) -> dict[str, str]:
    """Return the same request in two ways; a caller who needs a token puts it into HEADWAITER_TOKEN."""
    model = names[0] if names else "MODEL"
    token = ' -H "Authorization: Bearer $HEADWAITER_TOKEN"' if names is None else ""
    key = 'os.environ["HEADWAITER_TOKEN"]' if names is None else '"none"'
    data = shlex.quote(json.dumps({"model": model, "input": "a text"}))
    return {
        "curl": f"curl {shlex.quote(f'{address}/v1/embeddings')} -H 'Content-Type: application/json'{token} -d {data}",
        "Python, with the package openai": "import os\n\nfrom openai import OpenAI\n\n"
        f"client = OpenAI(base_url={json.dumps(f'{address}/v1')}, api_key={key})\n"
        f'print(client.embeddings.create(model={json.dumps(model)}, input=["a text"]).data[0].embedding)',
    }


def _page(links: dict[str, str], names: Sequence[str] | None, examples: dict[str, str]) -> str:
    models = "The names of the models are for callers with the token."
    if names is not None:
        models = "Models: " + (", ".join(names) or "none that answers requests at present") + "."
    items = "".join(f'<li><a href="{link}">{link}</a>: {words}</li>' for link, words in links.items())
    shown = "".join(f"<h2>{title}</h2><pre>{escape(text)}</pre>" for title, text in examples.items())
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Headwaiter</title><style>{_STYLE}</style></head><body><main><h1>Headwaiter</h1>"
        f"<p>A server for attention encoders. {escape(models)}</p><ul>{items}</ul>{shown}</main></body></html>"
    )
