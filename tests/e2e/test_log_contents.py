"""What the log of a server says of its start and of requests, as text and as JSON, and that it contains no secret."""

import asyncio
import json
import logging
import os
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.request import Request

import grpc
import pytest
import trustme

from headwaiter_client import Client, RetryPolicy, SequenceTooLong
from testbed.minilm import command_path
from testbed.server_process import RunningServer, running_server
from tests.support.e2e.http_calls import http_status
from tests.support.e2e.in_process_server import serving
from tests.support.e2e.prometheus_metrics import metric_value
from tests.support.e2e.request_messages import token_request
from tests.support.full_pipe import full_pipe
from tests.support.tiers import exhaustive

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
REVISION = "3f0c9ab12d45"
# What no line may contain: tokens of the server, and those that callers send.
SECRETS = ("s3cret-of-search", "s3cret-of-billing", "s3cret-of-ops", "wr0ng-token")


@dataclass
class Logged:
    """A server that logs to a file."""

    server: RunningServer
    log: Path
    folder: Path

    def call(self, token: str | None, tokens: list[int], request_id: str, method: str = "Encode") -> grpc.StatusCode:
        """Call over gRPC, and return the code."""
        request = token_request(tokens, [len(tokens)])
        request.request_id = request_id
        metadata = (("traceparent", TRACEPARENT), *((("authorization", f"Bearer {token}"),) if token else ()))
        with grpc.insecure_channel(self.server.address) as channel:
            call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/headwaiter.v1.Encoder/{method}")
            try:
                call(request.SerializeToString(), metadata=metadata, timeout=20)
            except grpc.RpcError as error:
                code: grpc.StatusCode = error.code()
                return code
            return grpc.StatusCode.OK

    def post(self, token: str, text: str) -> int:
        """Call HTTP, and return the status."""
        headers = {"Authorization": f"Bearer {token}", "Traceparent": TRACEPARENT}
        url, body = self.server.metrics_url.replace("/metrics", "/v1/embeddings"), json.dumps({"input": text}).encode()
        return http_status(urllib.request.Request(url, body, headers))

    def make_calls(self) -> None:
        """Make calls that succeed, that are mistakes, and whose tokens are refused."""
        assert self.call("s3cret-of-search", [1, 2], "good-1") is grpc.StatusCode.OK
        assert self.call("s3cret-of-billing", [1] * 65, "long-1") is grpc.StatusCode.INVALID_ARGUMENT
        assert self.call("wr0ng-token", [1], "refused-1") is grpc.StatusCode.UNAUTHENTICATED
        assert self.call("s3cret-of-search", [1], "refused-2", "LoadModel") is grpc.StatusCode.UNAUTHENTICATED
        assert self.call("s3cret-of-ops", [1], "broken-1", "UnloadModel") is not grpc.StatusCode.UNAUTHENTICATED
        assert self.post("s3cret-of-search", "rain") == 200
        assert self.post("s3cret-of-billing", "rain " * 65) == 400
        assert self.post("wr0ng-token", "rain") == 401


@contextmanager
def logged(bundle: Path, folder: Path, *flags: str) -> Iterator[Logged]:
    (folder / "models" / "tiny").mkdir(parents=True)
    (folder / "models" / "tiny" / "3").symlink_to(bundle)
    (folder / "tokens").write_text("search: s3cret-of-search\nbilling: s3cret-of-billing\n")
    (folder / "admin").write_text("ops: s3cret-of-ops\n")
    log = folder / "log"
    given = ["--provider", "cpu", "--models", str(folder / "models"), "--model-control", "on", "--http-api", "on"]
    given += ["--token-file", str(folder / "tokens"), "--admin-token-file", str(folder / "admin"), *flags]
    wrapper = ["env", f"HEADWAITER_REVISION={REVISION}"]
    with log.open("wb") as errors, running_server(None, given, wrapper, log=errors) as server:
        yield Logged(server, log, folder)


@pytest.mark.parametrize("front_ends", [0, 2])
def test_objects_of_requests_name_model_caller_trace_and_code_and_the_start_names_version_flags_and_bundles(
    front_ends: int, text_bundle: Path, tmp_path: Path
) -> None:
    flags = ["--log-format", "json", "--log-level", "debug", "--front-ends", str(front_ends)]
    with logged(text_bundle, tmp_path, *flags) as server:
        server.make_calls()
        assert metric_value(server.server.metrics_url, "headwaiter_build_info", revision=REVISION) == 1
    # Each line is an object.
    lines: list[dict[str, Any]] = [json.loads(line) for line in server.log.read_text().splitlines()]
    assert all({"time", "level", "message", "logger", "process"} <= line.keys() for line in lines)
    requests = {(line["method"], line["code"]): line for line in lines if "method" in line}
    by_grpc = {"caller": r"127\.0\.0\.1:\d+", "trace_id": TRACE}
    by_http = {"caller": r"127\.0\.0\.1", "trace_id": TRACE}
    model = {"model": "tiny", "version": "3"}
    expected: dict[tuple[str, str], dict[str, str]] = {
        ("Encode", "OK"): {"request_id": "good-1", "tenant": "search", "level": "DEBUG", **model, **by_grpc},
        ("Encode", "INVALID_ARGUMENT"): {"request_id": "long-1", "tenant": "billing", **model, **by_grpc},
        ("Encode", "UNAUTHENTICATED"): {"level": "WARNING", **by_grpc},
        ("LoadModel", "UNAUTHENTICATED"): {"level": "WARNING", **by_grpc},
        ("POST /v1/embeddings", "OK"): {"tenant": "search", "level": "DEBUG", **model, **by_http},
        ("POST /v1/embeddings", "INVALID_ARGUMENT"): {"tenant": "billing", **model, **by_http},
        ("POST /v1/embeddings", "UNAUTHENTICATED"): {"level": "WARNING", **by_http},
    }
    for key, fields in expected.items():
        for name, pattern in fields.items():
            assert re.fullmatch(pattern, requests[key][name]), (key, name, requests[key])
        assert re.fullmatch("front end [12]" if front_ends else "server", requests[key]["process"])
    assert "tenant" not in requests["Encode", "UNAUTHENTICATED"]
    answered = requests["Encode", "OK"]
    assert set(answered["stages"]) == {"tokenize", "queue", "assemble", "compute", "respond"}
    assert 0 < sum(answered["stages"].values()) <= answered["duration_s"]
    (start,) = [line["message"] for line in lines if "serving on port" in line["message"]]
    assert re.search(r"tiny version 3 \(digest [0-9a-f]{12}, cpu\)", start)
    facts = (version("headwaiter"), REVISION, f"--models {tmp_path}/models", "--log-format json", "--log-level debug")
    assert [fact for fact in facts if fact not in start] == []
    assert "--drain-s" not in start
    assert [line for line in lines if line["level"] == "WARNING" and "method" not in line] == []
    assert [secret for secret in SECRETS if secret in server.log.read_text()] == []


@pytest.mark.parametrize("log_format", ["text", *exhaustive("json")])
def test_errors_of_a_start_with_tokens_and_keys_contain_no_secret(
    log_format: str, text_bundle: Path, tmp_path: Path
) -> None:
    authority = trustme.CA()
    issued, other = authority.issue_cert("localhost"), authority.issue_cert("localhost")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    other.private_key_pem.write_to_path(tmp_path / "other.pem")
    (tmp_path / "cut.pem").write_bytes(issued.private_key_pem.bytes()[:-60])
    (tmp_path / "two").write_text("s3cret-of-search s3cret-of-billing\n")
    (tmp_path / "odd").write_bytes(b"search: s3cret-of-search\n\xff s3cret-of-ops\n")
    keys = [*issued.private_key_pem.bytes().splitlines(), *other.private_key_pem.bytes().splitlines()]
    secrets = [*SECRETS, *(line.decode() for line in keys if not line.startswith(b"-"))]
    for name, flags in {
        "two": ["--token-file", "two"],
        "odd": ["--token-file", "odd"],
        "other.pem": ["--tls-cert", "cert.pem", "--tls-key", "other.pem"],
        "cut.pem": ["--tls-cert", "cert.pem", "--tls-key", "cut.pem"],
        # The key in the place of the certificate.
        "key.pem": ["--tls-cert", "key.pem", "--tls-key", "cert.pem"],
    }.items():
        command = [command_path("headwaiter-server"), str(text_bundle), *flags, "--log-format", log_format]
        command += ["--address", "127.0.0.1:0", "--metrics-port", "0", "--log-level", "debug"]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert ended.returncode == 2
        shown = ended.stdout + ended.stderr
        assert name in shown
        assert [secret for secret in secrets if secret in shown] == []
        if log_format == "json":
            assert [json.loads(line)["level"] for line in ended.stderr.splitlines()][-1] == "ERROR"


@pytest.mark.parametrize("trusted", [False, True])
async def test_a_caller_over_http_is_named_by_a_trusted_proxy_only(
    text_bundle: Path, caplog: pytest.LogCaptureFixture, trusted: bool
) -> None:
    caplog.set_level(logging.INFO)
    proxies = ("127.0.0.1",) if trusted else ()
    async with serving(text_bundle, http_api="on", trusted_proxies=proxies) as server:
        url = f"http://127.0.0.1:{server.http_port}/v1/embeddings"
        request = Request(url, b"{", {"X-Forwarded-For": "192.0.2.7%0A forged"})
        assert await asyncio.to_thread(http_status, request) == 400
    (line,) = [message for message in caplog.messages if "/v1/embeddings" in message]
    assert ("from 127.0.0.1" in line) is not trusted
    assert ("192.0.2.7" in line) is trusted
    assert "\n" not in line


def test_a_server_answers_while_the_reader_of_its_log_is_stuck(text_bundle: Path) -> None:
    reader, writer = full_pipe()
    with os.fdopen(reader, "rb"), os.fdopen(writer, "wb") as log, running_server(text_bundle, log=log) as server:
        with Client(server.address, retry=RetryPolicy(max_attempts=1)) as client:
            for _ in range(20):
                with pytest.raises(SequenceTooLong):
                    client.encode(["rain " * 200])
            assert client.encode(["rain"]).pooled is not None
        server.process.terminate()
        assert server.process.wait(20) == 0
