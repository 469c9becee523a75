"""The page of `/`: what the server offers, with links and an example, for people and for programs."""

import json
import shlex
from collections.abc import Callable, Sequence
from html import escape

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from headwaiter_proto.rules.tasks import VECTORS
from headwaiter_server.models.served_model import ModelFacts

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
    links: dict[str, str],
    served_models: Callable[[Request], Sequence[ModelFacts] | None] = lambda _: None,
    *,
    asks_for_token: bool = False,
    has_api: bool = False,
) -> Route:
    """Return the route of `/`, as HTML for a browser and otherwise as JSON.

    Args:
        links: what each relative address has.
        served_models: returns the models, the default one first, or None if the caller may not know them.
        asks_for_token: whether requests need a token.
        has_api: whether the server takes requests over HTTP, of which the page has an example for a model of vectors.
    """

    async def start(request: Request) -> Response:
        models = served_models(request)
        names = None if models is None else [each.name for each in models]
        headers = {"Vary": "Accept, Authorization", "Cache-Control": "no-store"}
        if "text/html" not in request.headers.get("accept", ""):
            told = {"links": links} if names is None else {"links": links, "models": names}
            return JSONResponse(told, headers=headers)
        address = str(request.base_url).rstrip("/")
        able = ["MODEL"] if models is None else [each.name for each in models if _embeds_texts(each)]
        examples = _examples(address, able[0], asks_for_token=asks_for_token) if has_api and able else {}
        about = _words_about(names, asks_for_token=asks_for_token)
        return HTMLResponse(_page(about, links, examples), headers={**headers, **_PAGE_HEADERS})

    return Route("/", start)


def _embeds_texts(facts: ModelFacts) -> bool:
    return facts.manifest.max_text_tokens > 0 and VECTORS.suits(facts.manifest)


def _examples(address: str, model: str, *, asks_for_token: bool) -> dict[str, str]:
    """Return the same request in two ways; a caller who needs a token puts the token into HEADWAITER_TOKEN."""
    token = ' -H "Authorization: Bearer $HEADWAITER_TOKEN"' if asks_for_token else ""
    imports = "import os\n\n" if asks_for_token else ""
    key = 'os.environ["HEADWAITER_TOKEN"]' if asks_for_token else '"none"'
    data = shlex.quote(json.dumps({"model": model, "input": "a text"}))
    return {
        "curl": f"curl {shlex.quote(f'{address}/v1/embeddings')} -H 'Content-Type: application/json'{token} -d {data}",
        "Python, with the package openai": f"{imports}from openai import OpenAI\n\n"
        f"client = OpenAI(base_url={json.dumps(f'{address}/v1')}, api_key={key})\n"
        f'print(client.embeddings.create(model={json.dumps(model)}, input=["a text"]).data[0].embedding)',
    }


def _words_about(names: Sequence[str] | None, *, asks_for_token: bool) -> str:
    about = "A server for attention encoders."
    if names is not None:
        return f"{about} Models: {', '.join(names) or 'none that answers requests at present'}."
    return f"{about} The names of the models are for callers with the token." if asks_for_token else about


def _page(about: str, links: dict[str, str], examples: dict[str, str]) -> str:
    items = "".join(f'<li><a href="{link}">{link}</a>: {words}</li>' for link, words in links.items())
    shown = "".join(f"<h2>{title}</h2><pre>{escape(text)}</pre>" for title, text in examples.items())
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Headwaiter</title><style>{_STYLE}</style></head><body><main><h1>Headwaiter</h1>"
        f"<p>{escape(about)}</p><ul>{items}</ul>{shown}</main></body></html>"
    )
