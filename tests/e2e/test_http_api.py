"""OpenAI's unmodified client, curl-like requests and TEI's form get the vectors that gRPC gives, and typed errors."""

import asyncio
import base64
import json
import re
import shutil
import ssl
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import trustme

from headwaiter_client import Client
from testbed.server_process import RunningServer
from tests.support.documents import COMING_FROM, HTTP, blocks, table_rows
from tests.support.e2e.http_calls import http_status, post_json
from tests.support.e2e.in_process_server import connect, metrics_url, paused_device, serving, wait_until
from tests.support.e2e.prometheus_metrics import metric_value

TEXTS = ["fresh bread", "rain falls on stone", "a table for two"]


@pytest.fixture(scope="module")
def vectors(http_server: RunningServer) -> Any:
    """The vectors of TEXTS over gRPC."""
    with Client(http_server.address) as client:
        return client.encode(TEXTS).pooled


def url(server: RunningServer, path: str) -> str:
    return server.metrics_url.replace("/metrics", path)


def openai_client(server: RunningServer, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=url(server, "/v1"), api_key="unused", **{"max_retries": 0, **options})


def post(server: RunningServer, path: str, fields: Any) -> Any:
    return post_json(url(server, path), fields)


@pytest.mark.parametrize("encoding", ["float", "base64", None])
def test_openai_gives_the_vectors_of_grpc(encoding: Any, http_server: RunningServer, vectors: Any) -> None:
    options = {} if encoding is None else {"encoding_format": encoding}
    with openai_client(http_server) as client:
        reply = client.embeddings.create(input=TEXTS, model="tiny-text", **options)
    rows: list[Any] = [each.embedding for each in reply.data]
    if encoding == "base64":  # The client returns base64 that it was asked for as it is.
        rows = [np.frombuffer(base64.b64decode(row), "<f4") for row in rows]
    np.testing.assert_allclose(rows, vectors, rtol=0, atol=1e-6)
    assert [each.index for each in reply.data] == [0, 1, 2]
    assert reply.model == "tiny-text"
    assert reply.usage.prompt_tokens == reply.usage.total_tokens > len(TEXTS)


def test_openai_raises_its_typed_errors(http_server: RunningServer) -> None:
    with openai_client(http_server) as client:
        with pytest.raises(openai.NotFoundError) as missing:
            client.embeddings.create(input="a", model="text-embedding-3-small")
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as long:
            client.embeddings.create(input=["a", "a " * 1000], model="tiny-text")
        body: Any = long.value.body
        assert (long.value.code, body["sequence"], body["param"]) == ("context_length_exceeded", 1, "input")
        with pytest.raises(openai.BadRequestError) as foreign:
            client.embeddings.create(input=[[1, 100_257]], model="tiny-text")
        body = foreign.value.body
        assert (body["sequence"], body["actual"], body["param"]) == (0, 100_257, "input")
        assert "tokenizer" in body["message"]
        with pytest.raises(openai.APIStatusError) as large:
            client.embeddings.create(input="a" * 10_000_000, model="tiny-text")
        assert large.value.status_code == 413


def test_a_request_keeps_its_id(http_server: RunningServer) -> None:
    with openai_client(http_server) as client:
        embeddings = client.with_raw_response.embeddings
        reply = embeddings.create(input="a", model="", extra_body={"request_id": "mine-1"})
        assert reply.headers["x-request-id"] == "mine-1"
        with pytest.raises(openai.BadRequestError) as refused:
            embeddings.create(input="a", model="", extra_body={"request_id": "a\nb"})
        assert refused.value.param == "request_id"
        assert "mine" not in embeddings.create(input="a", model="").headers["x-request-id"]
    assert post(http_server, "/pooling", {"input": "a", "request_id": "mine-2"})["id"] == "mine-2"


def test_tei_gives_the_vectors_of_grpc(http_server: RunningServer, vectors: Any) -> None:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    # Haystack's client posts to the address of the server itself.
    for path in ("/embed", "/"):
        np.testing.assert_allclose(post(http_server, path, {"inputs": TEXTS}), vectors / lengths, rtol=0, atol=1e-6)
    rows = post(http_server, "/embed", {"inputs": "a " * 1000, "truncate": True, "normalize": False})
    assert np.shape(rows) == (1, vectors.shape[1])


async def test_a_full_queue_is_429_and_openai_tries_again(text_bundle: Path) -> None:
    async with serving(text_bundle, http_api="on", max_queue_tokens=8, max_request_tokens=8) as server:
        base_url = metrics_url(server).replace("/metrics", "/v1")
        async with (
            openai.AsyncOpenAI(base_url=base_url, api_key="unused", max_retries=0) as client,
            connect(server) as grpc_client,
        ):
            with paused_device() as device:
                calls = [asyncio.create_task(client.embeddings.create(input=[1] * 8, model=""))]
                await device.wait_for_batch()
                calls.append(asyncio.create_task(client.embeddings.create(input=[2] * 8, model="")))
                url = metrics_url(server)
                await wait_until(grpc_client, lambda: metric_value(url, "headwaiter_queue_tokens") == 8)
                with pytest.raises(openai.RateLimitError) as caught:
                    await client.embeddings.create(input=[1] * 8, model="")
                assert int(caught.value.response.headers["retry-after"]) >= 1
                patient = client.with_options(max_retries=100).embeddings.create(input=[3] * 8, model="")
                calls.append(asyncio.create_task(patient))
                await wait_until(grpc_client, lambda: (refused(url) or 0) >= 2)
                device.resume()
                assert [len(reply.data) for reply in await asyncio.gather(*calls)] == [1, 1, 1]


async def test_openai_does_not_send_a_request_again_whose_time_is_up(text_bundle: Path) -> None:
    async with serving(text_bundle, http_api="on") as server, connect(server) as grpc_client:
        base_url = metrics_url(server).replace("/metrics", "/v1")
        async with openai.AsyncOpenAI(base_url=base_url, api_key="unused", max_retries=2) as client:
            with paused_device() as device:
                first = asyncio.create_task(client.embeddings.create(input="a", model=""))
                await device.wait_for_batch()
                with pytest.raises(openai.InternalServerError) as caught:
                    await client.embeddings.create(input="a", model="", extra_body={"timeout_s": 0.1})
                assert caught.value.status_code == 504
                device.resume()
                await first
        await wait_until(grpc_client, lambda: answered(metrics_url(server)) == {"OK": 1, "DEADLINE_EXCEEDED": 1})


def answered(url: str) -> dict[str, float | None]:
    method = "POST /v1/embeddings"
    return {
        code: metric_value(url, "headwaiter_requests_total", method=method, code=code)
        for code in ("OK", "DEADLINE_EXCEEDED")
    }


def refused(url: str) -> float | None:
    return metric_value(url, "headwaiter_refused_total", reason="OVERLOADED")


@pytest.mark.parametrize("front_ends", [0, 2])
async def test_with_a_certificate_and_a_token_requests_need_both_and_metrics_neither(
    text_bundle: Path, tmp_path: Path, front_ends: int
) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    (tmp_path / "token").write_text("s3cret")
    files = {"tls_cert": tmp_path / "cert.pem", "tls_key": tmp_path / "key.pem", "token_file": tmp_path / "token"}
    context = ssl.create_default_context()
    authority.configure_trust(context)
    options = {"http_api": "on", "http_address": "127.0.0.1:0", "front_ends": front_ends}
    async with serving(text_bundle, **options, **files) as server:
        assert server.http_port != server.metrics_port
        address = f"https://127.0.0.1:{server.http_port}"

        def status(path: str, token: str, address: str = address) -> int:
            headers = {"Authorization": f"Bearer {token}"}
            return http_status(urllib.request.Request(address + path, headers=headers), context)

        assert await asyncio.to_thread(status, "/v1/models", "s3cret") == 200
        assert await asyncio.to_thread(status, "/v1/models", "wrong") == 401
        assert await asyncio.to_thread(status, "/health/ready", "") == 200
        with pytest.raises(OSError):  # noqa: PT011 - plain HTTP
            await asyncio.to_thread(urllib.request.urlopen, address.replace("https", "http") + "/v1/models")
        assert await asyncio.to_thread(status, "/metrics", "") == 200
        # What Prometheus asks has no TLS and no token.
        plain = f"http://127.0.0.1:{server.metrics_port}"
        assert await asyncio.to_thread(metric_value, f"{plain}/metrics", "headwaiter_model_info") == 1
        statuses = {"/health/live": 200, "/health/ready": 200, "/v1/models": 404, "/playground/": 404}
        assert {path: await asyncio.to_thread(status, path, "s3cret", plain) for path in statuses} == statuses


def test_the_commands_and_the_code_of_the_page_run(
    http_server: RunningServer, capsys: pytest.CaptureFixture[str]
) -> None:
    address = url(http_server, "")
    commands = [block for block in blocks(HTTP, "sh") if block.startswith("curl")]
    assert len(commands) == 6
    for command in commands if shutil.which("curl") else []:
        script = command.replace("http://localhost:9464", address)
        printed = json.loads(subprocess.run(["bash", "-euc", script], capture_output=True, check=True).stdout)
        if "pooled" in printed:
            assert printed["pooled"]["shape"] == [1, 32]
            continue
        if "/tokenize" in command:
            assert [token["text"] for token in printed[0]][1:3] == ["The", "bread"]
            continue
        rows = printed if isinstance(printed, list) else [each["embedding"] for each in printed["data"]]
        assert {len(row) for row in rows} == {32 // 8 if "ubinary" in command else 32}
    names: dict[str, Any] = {}
    for block in blocks(HTTP, "python"):
        exec(compile(block.replace("http://localhost:9464", address), HTTP.name, "exec"), names)
        names["client"].close()
    assert capsys.readouterr().out.split()[0] == "2"


@pytest.mark.parametrize("page", COMING_FROM, ids=lambda page: page.name)
def test_the_paths_for_users_of_another_server_exist(http_server: RunningServer, page: Path) -> None:
    cells = [theirs if ours.startswith("the same") else ours for theirs, ours in table_rows(page, "Paths")]
    paths = {path for cell in cells for path in re.findall(r"`(?:POST )?(/[\w/.]*)`", cell)}
    assert len(paths) >= 6
    for path in paths:
        address = url(http_server, path.replace("NAME", "tiny-text"))
        statuses = {http_status(address), http_status(urllib.request.Request(address, b"{}"))}
        assert not statuses <= {404, 405}, path
