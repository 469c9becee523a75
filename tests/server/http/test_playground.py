"""The playground's page and calls: the same answers as over gRPC, and no way in for hostile pages and callers."""

import asyncio
import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.applications import Starlette

from headwaiter_playground.page import PAGE_HEADERS
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_server.http.application import http_application
from headwaiter_server.settings.flags import Settings
from tests.support.server.asgi_caller import Reply, as_json, send_request
from tests.support.server.service_under_test import Service, pooled_rows, token_request
from tests.support.server.stand_ins import credentials_of, sample

JSON_TYPE = "application/json"
JSON = {"Content-Type": JSON_TYPE}
ENCODE = "/playground/call/Encode"
TEXT = {"texts": {"values": ["a bb"]}}
HTML = "<img src=x onerror=alert(1)>"


def playground(service: Service, token: str | None = None, **settings: Any) -> Starlette:
    changed = Settings(bundle=Path("bundle"), **{"playground": "on", **settings})
    return http_application(changed, service.path, credentials_of(token), asyncio.get_running_loop())


async def post(application: Starlette, method: str, fields: Any, headers: dict[str, str] = JSON) -> Reply:
    return await send_request(application, "POST", f"/playground/call/{method}", as_json(fields), headers=headers)


async def test_the_page_and_its_files_have_headers_that_forbid_other_scripts_and_hosts(service: Service) -> None:
    application = playground(service, token="s3cret")
    for path, media_type in (("", "text/html"), ("index.html", "text/html"), ("other_tabs.html", "text/html")):
        reply = await send_request(application, "GET", f"/playground/{path}")
        assert (reply.status, reply.headers["content-type"]) == (200, f"{media_type}; charset=utf-8")
        assert {name.lower(): value for name, value in PAGE_HEADERS.items()}.items() <= reply.headers.items()
        policy = dict(rule.split(" ", 1) for rule in reply.headers["content-security-policy"].split("; "))
        assert policy["default-src"] == policy["frame-ancestors"] == policy["form-action"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.body
    for name in ("style.css", "main.js"):
        reply = await send_request(application, "GET", f"/playground/{name}")
        assert (reply.status, reply.headers["x-content-type-options"]) == (200, "nosniff")


async def test_a_browser_gets_a_file_compressed_and_only_once(service: Service) -> None:
    asked = {"Accept-Encoding": "gzip, br"}
    first = await send_request(playground(service), "GET", "/playground/main.js", headers=asked)
    assert (first.status, first.headers["content-encoding"]) == (200, "gzip")
    assert len(first.body) < len(gzip.decompress(first.body)) / 2
    asked["If-None-Match"] = first.headers["etag"]
    again = await send_request(playground(service), "GET", "/playground/main.js", headers=asked)
    assert (again.status, again.body) == (304, b"")


async def test_a_large_reply_is_compressed_for_a_browser_that_takes_gzip(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwaiter_playground.call_rules._COMPRESSED_BYTES", 600)
    large = {"texts": {"values": ["a bb ccc"] * 2}, "output": {"hidden": True}}
    plain = await post(playground(service), "Encode", large)
    assert (plain.status, "content-encoding" in plain.headers) == (200, False), plain.body
    reply = await post(playground(service), "Encode", large, {**JSON, "Accept-Encoding": "gzip"})
    assert (reply.status, reply.headers["content-encoding"], reply.headers["content-type"]) == (200, "gzip", JSON_TYPE)
    assert int(reply.headers["content-length"]) == len(reply.body) < len(plain.body)
    assert json.loads(gzip.decompress(reply.body))["hidden"] == plain.json["hidden"]
    small = await post(playground(service), "ListModels", {}, {**JSON, "Accept-Encoding": "gzip"})
    assert "content-encoding" not in small.headers


@pytest.mark.parametrize(
    ("accepted", "is_compressed"),
    [
        ("br, gzip;q=0.5", True),
        ("GZIP", True),
        ("gzip ; q=0", False),
        ("br, gzip;q=0.000, *", False),
        ("notgzip", False),
        ("", False),
    ],
)
async def test_only_a_caller_that_takes_gzip_gets_it(
    accepted: str, is_compressed: bool, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwaiter_playground.call_rules._COMPRESSED_BYTES", 1)
    asked = {"Accept-Encoding": accepted}
    reply = await post(playground(service), "ListModels", {}, {**JSON, **asked})
    file = await send_request(playground(service), "GET", "/playground/main.js", headers=asked)
    for got in (reply, file):
        assert (got.status, got.headers.get("content-encoding")) == (200, "gzip" if is_compressed else None)


async def test_the_page_shows_the_form_for_the_token_if_calls_need_one(service: Service) -> None:
    for path in ("", "index.html"):
        for token, is_hidden in (("s3cret", False), (None, True)):
            reply = await send_request(playground(service, token=token), "GET", f"/playground/{path}")
            (form,) = re.findall(r'<form id="sign-in"[^>]*>', reply.body.decode())
            assert (" hidden" in form) == is_hidden


async def test_the_address_without_a_slash_leads_to_the_page(service: Service) -> None:
    reply = await send_request(playground(service), "GET", "/playground", headers={"Host": "evil.example"})
    assert (reply.status, reply.headers["location"]) == (307, "playground/")


@pytest.mark.parametrize("settings", [{"playground": "off"}, {"playground": "off", "http_api": "on"}])
async def test_the_playground_and_the_api_are_off_unless_asked_for(settings: dict[str, str], service: Service) -> None:
    application = playground(service, **settings)
    assert (await send_request(application, "GET", "/playground/")).status == 404
    assert (await post(application, "Encode", TEXT)).status == 404
    api = "/v1/embeddings"
    assert (await send_request(playground(service), "POST", api, as_json({"input": "a"}), headers=JSON)).status == 404


@pytest.mark.parametrize("name", ["", "LoadModel", "EncodeStream", "encode", HTML])
async def test_no_other_call_has_an_answer(name: str, service: Service) -> None:
    reply = await post(playground(service), name, TEXT)
    headers = reply.headers
    assert (reply.status, headers["content-type"], headers["x-content-type-options"]) == (404, JSON_TYPE, "nosniff")


async def test_a_missing_file_does_not_send_to_flags_that_are_on(service: Service) -> None:
    reply = await send_request(playground(service), "GET", "/playground/nofile")
    assert (reply.status, reply.json["code"]) == (404, "UNIMPLEMENTED")
    assert "--playground" not in reply.json["message"]


async def test_the_page_encodes_as_grpc_does(service: Service) -> None:
    application = playground(service)
    sent = {"texts": {"values": ["a bb", "ccc"]}, "output": {"pooled": True, "hidden": True}, "requestId": "r-1"}
    reply = await post(application, "Encode", sent)
    assert (reply.status, reply.headers["content-type"]) == (200, JSON_TYPE)
    assert reply.json["requestId"] == reply.headers["x-request-id"] == "r-1"
    pooled = reply.json["pooled"]
    rows = np.frombuffer(base64.b64decode(pooled["data"]), "<f4").reshape(pooled["shape"]).tolist()
    request = pb.EncodeRequest(texts=pb.Texts(values=["a bb", "ccc"]))
    assert rows == pooled_rows(await service.encode(request)) == [[3, 2], [3, 1]]
    assert reply.json["lengths"] == [2, 1]
    assert reply.json["hidden"]["shape"] == [3, 2]
    assert reply.json["timings"]["totalS"] > 0
    assert (
        sample(service.recorder, "requests_total", model="tiny", version="1", method=f"POST {ENCODE}", code="OK") == 1
    )


async def test_the_page_attends_and_lists_models_and_batches_as_grpc_does(service: Service) -> None:
    application = playground(service)
    weights = (await post(application, "Attend", {**TEXT, "layers": [1], "heads": [2]})).json
    expected = await service.attend(pb.AttendRequest(texts=pb.Texts(values=["a bb"]), layers=[1], heads=[2]))
    assert base64.b64decode(weights["weights"]["data"]) == expected.weights.data
    assert weights["tokens"] == ["<1>", "<2>"]
    assert (await post(application, "GetModel", {"name": "tiny"})).json["model"]["digest"] == "ab" * 32
    assert [model["name"] for model in (await post(application, "ListModels", {})).json["models"]] == ["tiny"]
    await service.encode(token_request([1, 2]))
    assert [batch["lengths"] for batch in (await post(application, "ListBatches", {})).json["batches"]] == [[2]]
    assert (await post(application, "ListBatches", {"model": "x"})).json["reason"] == "MODEL_NOT_FOUND"


async def test_calls_need_the_token_and_files_do_not(service: Service) -> None:
    application = playground(service, token="s3cret")
    for given in ({}, {"Authorization": "Bearer wrong"}):
        reply = await post(application, "ListModels", {}, {**JSON, **given})
        assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")
        assert (reply.json["code"], reply.json["reason"]) == ("UNAUTHENTICATED", "UNAUTHENTICATED")
        assert "s3cret" not in reply.body.decode()
    assert (await send_request(application, "GET", "/playground/")).status == 200
    assert (await post(application, "ListModels", {}, {**JSON, "Authorization": "Bearer s3cret"})).status == 200


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json", 200),
        ("Application/JSON; charset=utf-8", 200),
        # A page of another origin may send these types without the consent of the server.
        (None, 415),
        ("", 415),
        ("text/plain", 415),
        ("text/plain; application/json", 415),
        ("text/plain;charset=application/json", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=application/json", 415),
        ("application/json-seq", 415),
    ],
)
async def test_only_bodies_that_a_foreign_page_cannot_send_are_read(
    content_type: str | None, status: int, service: Service
) -> None:
    headers = {} if content_type is None else {"Content-Type": content_type}
    reply = await post(playground(service), "Encode", TEXT, {**headers, "Origin": "https://evil.example"})
    assert reply.status == status
    assert not [name for name in reply.headers if name.startswith("access-control-")]
    if status == 415:
        assert (reply.json["code"], reply.json["reason"]) == ("INVALID_ARGUMENT", "INVALID_INPUT")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:9464", 200),
        ("127.0.0.1:9464", 200),
        ("192.0.2.7", 200),
        ("[::1]:9464", 200),
        ("models.example:80", 200),
        # The name of another web site may resolve to the address of the server.
        ("evil.example:9464", 403),
        ("evil.models.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1]evil.example", 403),
        ("[evil.example]", 403),
        ("", 403),
    ],
)
async def test_without_a_token_a_foreign_name_of_the_server_gets_no_answer(
    host: str, status: int, service: Service
) -> None:
    headers = {**JSON, "Host": host, "Origin": f"http://{host}"}
    application = playground(service, http_address="models.example:9464")
    reply = await post(application, "Encode", TEXT, headers)
    assert reply.status == status
    if status == 403:
        assert reply.json["code"] == "INVALID_ARGUMENT"
        assert "--token-file" in reply.json["message"]
    signed_in = playground(service, token="s3cret", http_address="models.example:9464")
    assert (await post(signed_in, "Encode", TEXT, {**headers, "Authorization": "Bearer s3cret"})).status == 200


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({**TEXT, "model": HTML}, 404),
        ({"texts": {"values": [f"{HTML} {HTML} {HTML}"]}}, 400),
        ({"texts": {"values": ["a"], "prompt": HTML}}, 400),
        ({**TEXT, "requestId": f"{HTML}\n"}, 400),
        ({**TEXT, HTML: 1}, 400),
        ({**TEXT, "truncation": HTML}, 400),
        ({**TEXT, "requestId": HTML}, 200),
    ],
)
async def test_html_comes_back_only_inside_json_that_no_browser_takes_for_html(
    fields: dict[str, Any], status: int, service: Service
) -> None:
    reply = await post(playground(service), "Encode", fields)
    assert (reply.status, reply.headers["content-type"]) == (status, JSON_TYPE)
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert isinstance(reply.json, dict)


async def test_a_large_body_is_refused(service: Service) -> None:
    reply = await post(playground(service), "Encode", {"texts": {"values": ["a" * (256 << 10)]}})
    assert (reply.status, reply.json["metadata"]["limit"]) == (413, str(256 << 10))


async def test_a_large_reply_is_refused(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwaiter_server.http.playground._MAX_REPLY_BYTES", 100)
    reply = await post(playground(service), "Encode", TEXT)
    assert (reply.status, reply.json["reason"], reply.json["metadata"]["limit"]) == (413, "MESSAGE_TOO_LARGE", "100")


async def test_the_bytes_of_replies_in_a_second_are_bounded(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 10.0
    monkeypatch.setattr("headwaiter_server.http.playground.clock", lambda: now_s)
    size = (await service.encode(pb.EncodeRequest(texts=pb.Texts(values=["a bb"])))).ByteSize()
    monkeypatch.setattr("headwaiter_server.http.playground._REPLY_BYTES_PER_S", 5 * size // 2)
    application = playground(service)
    assert [(await post(application, "Encode", TEXT)).status for _ in range(3)] == [200, 200, 429]
    now_s = 11.0
    assert (await post(application, "Encode", TEXT)).status == 200


async def test_the_rate_of_calls_is_bounded(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 10.0
    monkeypatch.setattr("headwaiter_server.http.playground.clock", lambda: now_s)
    application = playground(service, token="s3cret")
    good = {**JSON, "Authorization": "Bearer s3cret"}
    # Calls without the token take nothing from those that have it.
    assert [(await post(application, "ListModels", {})).status for _ in range(60)] == [401] * 60
    for method in ("ListModels", "ListBatches"):
        assert [(await post(application, method, {}, good)).status for _ in range(25)] == [200] * 25
    refused = await post(application, "GetModel", {}, good)
    assert (refused.status, refused.headers["retry-after"], refused.json["reason"]) == (429, "1", "OVERLOADED")
    now_s = 11.0
    assert (await post(application, "GetModel", {}, good)).status == 200
