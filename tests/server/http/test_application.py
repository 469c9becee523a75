"""Each path of the table answers, also after the name of a model, and in the form that its client expects."""

import asyncio
import gzip
import json
import re
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from starlette.applications import Starlette

from headwaiter_proto import open_inference_pb2 as oip
from headwaiter_server.http.api.open_inference import LOAD, UNLOAD
from headwaiter_server.http.api.openapi import document
from headwaiter_server.http.api.routes import TABLE
from headwaiter_server.http.application import http_application
from headwaiter_server.inputs.tokenizer import TokenizedText
from headwaiter_server.models.model_version import ModelState, VersionStatus
from headwaiter_server.open_inference.methods import OpenInferenceMethods
from headwaiter_server.settings.flags import Settings
from tests.support.server.asgi_caller import Reply, as_json, send_request
from tests.support.server.questions import ask
from tests.support.server.service_under_test import Service, WordLengths, endless_call
from tests.support.server.stand_ins import credentials_of, sample

DOCUMENT = document()
INPUT, INPUTS, TEXTS = {"input": "a bb"}, {"inputs": "a bb"}, {"texts": ["a bb"]}
RANKED = {"query": "q", "documents": ["a"]}
# The bodies of paths for which a model without a head will do.
VECTORS: dict[str, Any] = {
    "/v1/embeddings": INPUT,
    "/embeddings": INPUT,
    "/openai/deployments/{model}/embeddings": INPUT,
    "/openai/v1/embeddings": INPUT,
    "/embed": INPUTS,
    "/": INPUTS,
    "/embed_all": INPUTS,
    "/similarity": {"inputs": {"source_sentence": "a", "sentences": ["bb"]}},
    "/pooling": INPUT,
    "/v1/embed": TEXTS,
    "/v2/embed": TEXTS,
    "/api/embed": INPUT,
    "/api/embeddings": {"prompt": "a bb"},
}
# The bodies of paths that need a head, or sparse vectors.
OTHERS: dict[str, Any] = {
    "/embed_sparse": INPUTS,
    "/predict": INPUTS,
    "/rerank": {"query": "q", "texts": ["a"]},
    "/v1/rerank": RANKED,
    "/v2/rerank": RANKED,
    "/score": {"text_1": "a", "text_2": "b"},
    "/v1/score": {"text_1": "a", "text_2": "b"},
    "/classify": INPUT,
    "/v1/classify": INPUT,
}
BODIES = {**VECTORS, **OTHERS}
# The bodies of paths that encode nothing.
TOKENS: dict[str, Any] = {
    "/tokenize": INPUTS,
    "/decode": {"ids": [1, 2]},
    "/detokenize": {"tokens": [1, 2]},
}
IDS = {"name": "input_ids", "shape": [1, 2], "datatype": "INT64", "data": [1, 2]}
OPEN_INFERENCE: dict[str, Any] = {"/v2/models/{model}/infer": {"inputs": [IDS]}, "/v2/repository/index": {}}
# The service of the tests has no models that callers load.
ANSWERED = [each for each in TABLE if each.path not in OTHERS and each.does[0] not in (LOAD, UNLOAD)]


def application(
    service: Service, token: str | None = None, admin_token: str | None = None, **settings: Any
) -> Starlette:
    changed = Settings(bundle=Path("bundle"), http_api="on", **settings)
    return http_application(changed, service.path, credentials_of(token, admin_token), asyncio.get_running_loop())


async def send(service: Service, verb: str, path: str, body: Any = None, **options: Any) -> Reply:
    raw = body if isinstance(body, bytes) else as_json(body) if body is not None else b""
    return await send_request(application(service), verb, path, raw, **options)


@pytest.mark.parametrize("entry", ANSWERED, ids=lambda each: each.path)
async def test_a_path_answers_as_described_with_and_without_a_model_or_a_version(entry: Any, service: Service) -> None:
    for answered, path in enumerate(entry.paths, 1):
        body = None if entry.verb == "GET" else {**BODIES, **TOKENS, **OPEN_INFERENCE}[entry.path]
        reply = await send(service, entry.verb, path.replace("{model}", "tiny").replace("{version}", "1"), body)
        assert reply.status == 200, reply.body
        responses = DOCUMENT["paths"][path][entry.verb.lower()]["responses"]
        Draft202012Validator(responses["200"]["content"]["application/json"]["schema"]).validate(reply.json)
        # The name of the model in a path does not make a label of its own.
        of_model = entry.does[0].of_model or "{model}" in entry.path
        counted = {"model": "tiny" if of_model else "", "version": ""}
        counted["version"] = "1" if counted["model"] else ""
        name = f"{entry.verb} {entry.path}"
        assert sample(service.recorder, "requests_total", method=name, code="OK", **counted) == answered


PREFIXED = [each for each in TABLE if each.paths[-1].startswith("/models/")]


@pytest.mark.parametrize("entry", PREFIXED, ids=lambda each: each.path)
async def test_an_unknown_model_in_a_path_is_refused(entry: Any, service: Service) -> None:
    body = None if entry.verb == "GET" else {**BODIES, **TOKENS}[entry.path]
    reply = await send(service, entry.verb, entry.paths[-1].replace("{model}", "other"), body)
    assert reply.status == 404, reply.body
    assert "'other'" in reply.body.decode()


@pytest.mark.parametrize("path", OTHERS)
async def test_a_model_without_what_a_path_needs_is_refused(path: str, service: Service) -> None:
    reply = await send(service, "POST", path, OTHERS[path])
    assert reply.status == 400
    assert "'tiny' encodes" in reply.body.decode()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        *((path, {}) for path in (*BODIES, *TOKENS)),
        *((path, {**body, "model": "other"}) for path, body in BODIES.items() if "{model}" not in path),
        ("/rerank", {"query": "q", "documents": ["a"], "model": "other"}),
        ("/rerank", {"query": "q", "documents": ["a"], "top_n": 0}),
        ("/pooling", {"input": "a", "task": "token_embed", "model": "other"}),
        ("/v2/models/{model}/infer", {}),
        ("/v2/repository/index", {"x": 1}),
    ],
)
async def test_errors_have_the_form_that_the_description_gives(path: str, body: Any, service: Service) -> None:
    reply = await send(service, "POST", path.replace("{model}", "tiny"), body)
    assert reply.status in (400, 404)
    described = DOCUMENT["paths"][path]["post"]["responses"][str(reply.status)]["content"]["application/json"]["schema"]
    form = described.get("anyOf", [described])[0]["$ref"]
    schema = DOCUMENT["components"]["schemas"][form.rpartition("/")[2]]
    Draft202012Validator(schema).validate(reply.json)


async def test_rows_whose_json_is_too_large_are_refused(service: Service) -> None:
    # Two rows of 2 numbers, of 4 bytes each, and of 12 in JSON.
    for max_reply_bytes, status in ((47, 400), (48, 200)):
        service.path.settings = Settings(bundle=Path("bundle"), max_reply_bytes=max_reply_bytes)
        assert (await send(service, "POST", "/embed_all", {"inputs": "a bb"})).status == status


async def test_the_deployment_of_azure_wins_over_the_model_of_the_body(service: Service) -> None:
    body = {"input": "a", "model": "text-embedding-ada-002"}
    assert (await send(service, "POST", "/openai/deployments/tiny/embeddings", body)).status == 200
    assert (await send(service, "POST", "/models/tiny/v1/embeddings", body)).status == 400


async def test_the_error_names_the_field_that_the_body_has(service: Service) -> None:
    for field in ("prompt", "task"):
        reply = await send(service, "POST", "/v1/embeddings", {"input": "a", field: "none"})
        assert (reply.status, reply.json["error"]["param"]) == (400, field)


@pytest.mark.parametrize("headers", [{}, {"Content-Encoding": "gzip"}])
async def test_a_compressed_body_is_named(headers: dict[str, str], service: Service) -> None:
    reply = await send(service, "POST", "/v1/embeddings", gzip.compress(as_json({"input": "a"})), headers=headers)
    assert reply.status == 415
    assert "compress" in reply.json["error"]["message"]


@pytest.mark.parametrize("path", ["/health", "/ping", "/health/ready"])
async def test_health_has_the_paths_of_other_servers(path: str, service: Service) -> None:
    assert (await send(service, "GET", path)).status == 200
    service.path.drain()
    assert (await send(service, "GET", path)).status == 503


PREFLIGHT = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}


@pytest.mark.parametrize(
    ("origin", "status", "allowed"), [("https://a.example", 200, "https://a.example"), ("https://b.example", 400, None)]
)
async def test_scripts_of_listed_web_sites_may_call(
    origin: str, status: int, allowed: str | None, service: Service
) -> None:
    api = application(service, http_origins=("https://a.example",), playground="on")
    headers = {**PREFLIGHT, "Origin": origin, "Access-Control-Request-Headers": "authorization"}
    for path in ("/v1/embeddings", "/models/tiny/embed"):
        reply = await send_request(api, "OPTIONS", path, headers=headers)
        assert (reply.status, reply.headers.get("access-control-allow-origin")) == (status, allowed)
    reply = await send_request(api, "POST", "/v1/embeddings", as_json({"input": "a"}), headers={"Origin": origin})
    assert (reply.status, reply.headers.get("access-control-allow-origin")) == (200, allowed)
    # Without a browser's question, OPTIONS is refused as any other method; two routes share the path /.
    for path, methods in (("/v1/embeddings", "POST"), ("/v1/models", "GET"), ("/", "GET, POST")):
        for verb in ("OPTIONS", "PUT"):
            reply = await send_request(api, verb, path, as_json({"input": "a"}))
            assert (reply.status, reply.headers["allow"]) == (405, methods)
            use = methods.replace(", ", " or ")
            assert f"{path} does not take {verb}: use {use}" in reply.json["error"]["message"]
    # The page's calls rely on browsers that ask before another web site calls.
    assert (await send_request(api, "OPTIONS", "/playground/call/Encode", headers=headers)).status == 405


async def test_without_origins_no_web_site_may_call(service: Service) -> None:
    reply = await send_request(application(service), "OPTIONS", "/v1/embeddings", headers=PREFLIGHT)
    assert (reply.status, "access-control-allow-origin" in reply.headers) == (405, False)


async def test_the_description_needs_no_token(service: Service) -> None:
    locked = application(service, "s3cret")
    reply = await send_request(locked, "GET", "/openapi.json")
    assert json.loads(reply.body) == json.loads(json.dumps(DOCUMENT))
    assert (await send_request(locked, "GET", "/docs")).headers["content-type"].startswith("text/html")
    assert (await send_request(locked, "GET", "/v1/models")).status == 401


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2/health/ready", "/v2/models/tiny/ready"])
async def test_health_of_the_open_inference_protocol_needs_no_token(path: str, service: Service) -> None:
    locked = application(service, "s3cret")
    assert (await send_request(locked, "GET", path)).status == 200
    assert (await send_request(locked, "GET", "/v2/models/tiny")).status == 401


async def test_a_caller_without_a_token_learns_no_name_of_a_model_and_no_reason_of_a_failure(service: Service) -> None:
    broken = VersionStatus("broken", 1, ModelState.FAILED, "the secret reason")
    service.path.engine.directory.update([broken], {"tiny": service.served})
    locked = application(service, "s3cret")
    for name in ("broken", "other", "tiny/versions/7"):
        reply = await send_request(locked, "GET", f"/v2/models/{name}/ready")
        assert reply.status == 404
        assert not re.search(rb"tiny|secret", reply.body)
        methods = OpenInferenceMethods(service.path)
        request = oip.ModelReadyRequest(name=name.partition("/")[0], version=name.partition("s/")[2])
        assert (await methods.model_ready(request, endless_call())).ready is False
    assert (await send_request(locked, "GET", "/v2/models/tiny/ready")).status == 200


async def test_the_tensors_of_the_open_inference_protocol_may_follow_the_json(service: Service) -> None:
    path, ids = "/v2/models/tiny/infer", {key: value for key, value in IDS.items() if key != "data"}
    (output,) = (await send(service, "POST", path, {"inputs": [IDS]})).json["outputs"]
    assert (output["name"], output["shape"], output["data"]) == ("pooled", [1, 2], [3.0, 2.0])
    content = as_json({"inputs": [{**ids, "parameters": {"binary_data_size": 16}}]})
    body = content + (1).to_bytes(8, "little") + (2).to_bytes(8, "little")
    for length, status in ((str(len(content)), 200), ("x", 400)):
        reply = await send(service, "POST", path, body, headers={"Inference-Header-Content-Length": length})
        assert reply.status == status
        assert reply.json["outputs"] == [output] if status == 200 else reply.json["error"]
    for path in ("/v2/models/other/ready", "/v2/models/tiny/versions/7"):
        assert (await send(service, "GET", path)).status == 404


async def test_loading_a_model_needs_the_token_of_administrators(service: Service) -> None:
    locked = application(service, "s3cret", "4dmin")
    for token, status in {"s3cret": 401, "4dmin": 501}.items():
        headers = {"Authorization": f"Bearer {token}"}
        path = "/v2/repository/models/tiny/load"
        assert (await send_request(locked, "POST", path, headers=headers)).status == status


async def test_an_id_may_have_any_letters(service: Service) -> None:
    for inputs, status in (([IDS], 200), ([], 400)):
        reply = await send(service, "POST", "/v2/models/tiny/infer", {"id": "日本 1%", "inputs": inputs})
        assert (reply.status, reply.headers["x-request-id"]) == (status, "%E6%97%A5%E6%9C%AC 1%25")


@pytest.mark.parametrize("path", BODIES)
def test_every_path_reads_empty_texts(path: str) -> None:
    def emptied(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: emptied(each) for key, each in value.items()}
        return [emptied(each) for each in value] if isinstance(value, list) else ""

    request = ask(path, emptied(BODIES[path])).question.encode
    texts = [*request.texts.values, *request.pairs.first, *request.pairs.second]
    assert texts == [""] * (1 if request.HasField("texts") and path != "/similarity" else 2)


class OneWord(WordLengths):
    """A tokenizer that truncates each text to one word."""

    def tokenize(self, *arguments: Any) -> Generator[None, None, list[TokenizedText]]:
        tokenized = yield from super().tokenize(*arguments)
        return [TokenizedText(each.ids[:1], each.original_tokens, None) for each in tokenized]


TEXT_TENSOR = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a bb"]}
TRUNCATED = {**VECTORS, "/v2/models/{model}/infer": {"inputs": [TEXT_TENSOR], "parameters": {"truncation": "left"}}}


@pytest.mark.parametrize("path", TRUNCATED)
async def test_every_path_says_which_texts_were_truncated(path: str, serve: Callable[..., Service]) -> None:
    reply = await send(serve(OneWord()), "POST", path.replace("{model}", "tiny"), TRUNCATED[path])
    # The texts of /similarity are single words.
    expected = None if path == "/similarity" else "0"
    assert (reply.status, reply.headers.get("headwaiter-truncated")) == (200, expected)


# proto/test_unicode.py has the fields of all paths.
@pytest.mark.parametrize(("path", "field"), [("/v1/embeddings", "input"), ("/embed", "inputs")])
async def test_half_an_emoji_is_named(path: str, field: str, service: Service) -> None:
    reply = await send(service, "POST", path, {field: ["a", "bb \ud83c"]})
    assert reply.status == 400
    error = reply.json["error"]
    message = error if isinstance(error, str) else error["message"]
    assert [word for word in (f"sequence 1 of '{field}'", "U+D83C", "character 3") if word not in message] == []
    if path != "/embed":
        assert (error["code"], error["param"], error["sequence"]) == ("invalid_input", field, 1)


async def test_deeply_nested_values_are_refused(service: Service) -> None:
    for field in ("encoding_format", "truncation", "model", "dimensions", "input"):
        body = b'{"input": "a", "%s": %s}' % (field.encode(), b"[" * 1000 + b"]" * 1000)
        reply = await send(service, "POST", "/v1/embeddings", body)
        assert (reply.status, reply.json["error"]["param"]) == (400, field)


async def test_a_fault_of_the_server_has_the_form_of_errors_and_is_counted(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise RecursionError("secret")

    monkeypatch.setattr("headwaiter_server.http.api.routes.read_question", fail)
    reply = await send(service, "POST", "/v1/embeddings", {"input": "a"})
    assert (reply.status, reply.json["error"]["type"], b"secret" in reply.body) == (500, "server_error", False)
    labels = {"method": "POST /v1/embeddings", "model": "", "version": ""}
    assert sample(service.recorder, "requests_total", code="INTERNAL", **labels) == 1


@pytest.mark.parametrize(
    ("headers", "closed"),
    [
        ({"Content-Length": "10"}, False),
        ({}, False),
        ({"Content-Length": "65537"}, True),
        ({"Transfer-Encoding": "chunked"}, True),
        ({"Content-Length": "9" * 5000}, True),
    ],
)
async def test_a_caller_without_a_token_cannot_go_on_to_send(
    headers: dict[str, str], closed: bool, service: Service
) -> None:
    locked = application(service, "s3cret")
    reply = await send_request(locked, "POST", "/embed", b"{", headers=headers, complete=False)
    assert (reply.status, reply.headers.get("connection") == "close") == (401, closed)


@pytest.mark.parametrize("path", ["/v1/embeddings\n", "/metrics\n", "/v2/models/tiny/ready\x7f", "/health\r"])
async def test_a_path_with_a_control_character_is_unknown(path: str, service: Service) -> None:
    assert (await send(service, "GET", path)).status == 404


async def test_a_model_is_not_ready_on_a_server_that_starts_or_drains(service: Service) -> None:
    directory, path = service.path.engine.directory, "/v2/models/tiny/ready"
    directory.started = False
    reply = await send(service, "GET", path)
    assert (reply.status, reply.headers["retry-after"]) == (503, "1")
    assert sample(service.recorder, "refused_total", reason="STARTING") == 1
    directory.started = True
    assert (await send(service, "GET", path)).json == {"name": "tiny", "ready": True}
    service.path.drain()
    assert (await send(service, "GET", path)).status == 503
