"""The address `/` tells people and programs what the server offers; the names of models need the token."""

import asyncio
import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from headwaiter_server.http.application import http_application, metrics_application
from headwaiter_server.settings.flags import Settings
from tests.support.server.asgi_caller import Reply, send_request
from tests.support.server.service_under_test import Service
from tests.support.server.stand_ins import credentials_of

HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


async def get(service: Service, headers: dict[str, str], token: str | None = None, **settings: Any) -> Reply:
    changed = Settings(bundle=Path("bundle"), **settings)
    application = http_application(changed, service.path, credentials_of(token), asyncio.get_running_loop())
    return await send_request(application, "GET", "/", headers=headers)


@pytest.mark.parametrize(
    ("settings", "links"),
    [
        ({}, ["metrics", "health/ready"]),
        ({"http_api": "on"}, ["docs", "openapi.json", "metrics", "health/ready"]),
        ({"playground": "on"}, ["playground/", "metrics", "health/ready"]),
        (
            {"http_api": "on", "playground": "on"},
            ["playground/", "docs", "openapi.json", "metrics", "health/ready"],
        ),
    ],
)
async def test_the_page_links_to_what_is_on(settings: dict[str, str], links: list[str], service: Service) -> None:
    changed = Settings(bundle=Path("bundle"), **settings)  # type: ignore[arg-type]
    application = http_application(changed, service.path, credentials_of(None), asyncio.get_running_loop())
    page = await send_request(application, "GET", "/", headers=HTML)
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert re.findall(r'href="([^"]+)"', page.body.decode()) == links
    for link in links:
        assert (await send_request(application, "GET", f"/{link}")).status == 200
    told = await send_request(application, "GET", "/", headers={"Accept": "*/*"})
    assert (list(told.json["links"]), told.json["models"]) == (links, ["tiny"])


@pytest.mark.parametrize("accept", [HTML, {}])
async def test_the_names_of_models_are_for_callers_with_the_token(accept: dict[str, str], service: Service) -> None:
    options = {"http_api": "on", "playground": "on"}
    for given in ({}, {"Authorization": "Bearer wrong"}):
        assert b"tiny" not in (await get(service, {**accept, **given}, "s3cret", **options)).body
    for good in ({"Authorization": "Bearer s3cret"}, {"api-key": "s3cret"}):
        assert b"tiny" in (await get(service, {**accept, **good}, "s3cret", **options)).body
    assert b"tiny" in (await get(service, accept, **options)).body


async def test_the_examples_have_the_address_that_the_caller_used(service: Service) -> None:
    reply = await get(service, {**HTML, "Host": "models.example:9464"}, http_api="on")
    assert b"curl http://models.example:9464/v1/embeddings " in reply.body
    for hostile in ("<b>", "a'$(x)"):
        assert hostile not in (await get(service, {**HTML, "Host": hostile}, http_api="on")).body.decode()


async def test_the_examples_have_a_model_that_gives_vectors_of_texts(service: Service) -> None:
    assert b'"model": "tiny"' in unescape((await get(service, HTML, http_api="on")).body.decode()).encode()
    (served,) = service.path.engine.directory.served
    served.manifest.head.labels.append("label")
    page = (await get(service, HTML, http_api="on")).body
    assert b"Models: tiny." in page
    assert b"/v1/embeddings" not in page


async def test_before_a_model_is_loaded_the_page_says_so(service: Service) -> None:
    service.path.engine.directory.update([], {})
    assert b"none that answers requests at present" in (await get(service, HTML)).body


async def test_the_examples_have_a_token_if_requests_need_one(service: Service) -> None:
    parts = ('-H "Authorization: Bearer $HEADWAITER_TOKEN"', 'api_key=os.environ["HEADWAITER_TOKEN"]', "import os")
    for token in ("s3cret", None):
        shown = unescape((await get(service, HTML, token, http_api="on")).body.decode())
        assert [part in shown for part in parts] == [token is not None] * 3


async def test_the_port_of_the_metrics_has_a_page_without_names(service: Service) -> None:
    page = await send_request(metrics_application(service.path), "GET", "/", headers=HTML)
    assert "<p>A server for attention encoders.</p>" in page.body.decode()
    reply = await send_request(metrics_application(service.path), "GET", "/")
    assert json.loads(reply.body) == {
        "links": {"metrics": "metrics for Prometheus", "health/ready": "whether the server takes requests"}
    }
