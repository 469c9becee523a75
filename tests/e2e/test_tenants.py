"""Callers with named tokens have limits and metrics of their own; other callers make no series."""

import json
import urllib.request
from pathlib import Path

import pytest

from headwaiter_client import Client, Overloaded, RetryPolicy, Unauthenticated
from testbed.server_process import running_server
from tests.support.e2e.http_calls import http_status
from tests.support.e2e.prometheus_metrics import metric_value, metrics_page

ONCE = RetryPolicy(max_attempts=1)


@pytest.mark.parametrize("front_ends", ["0", "2"])
def test_a_rate_refuses_its_tenant_only_and_metrics_count_by_tenant(
    front_ends: str, text_bundle: Path, tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("search: s3cret-of-search\nbatch: s3cret-of-batch tokens_per_s=1\n")
    flags = ["--provider", "cpu", "--token-file", str(tokens), "--front-ends", front_ends, "--http-api", "on"]
    with running_server(text_bundle, flags) as server:
        with Client(server.address, token="s3cret-of-batch", retry=ONCE) as batch:
            batch.encode_tokens([[1] * 60])
            with pytest.raises(Overloaded) as raised:
                batch.encode_tokens([[1, 2]])
        # The caller may return one second before 60 s, which the tokens take at this rate, are over.
        assert raised.value.retry_after_s == pytest.approx(59, abs=10)
        body = json.dumps({"input": "rain"}).encode()
        url = server.metrics_url.replace("/metrics", "/v1/embeddings")
        by_http = [{"Authorization": f"Bearer {token}"} for token in ("s3cret-of-batch", "s3cret-of-search")]
        assert [http_status(urllib.request.Request(url, body, headers)) for headers in by_http] == [429, 200]
        with Client(server.address, token="s3cret-of-search", retry=ONCE) as search:
            search.encode_tokens([[1, 2], [1]])
        with Client(server.address, token="n0-such-token", retry=ONCE) as unknown, pytest.raises(Unauthenticated):
            unknown.encode_tokens([[1]])
        read = {
            (name, tenant): metric_value(server.metrics_url, f"headwaiter_tenant_{name}", tenant=tenant, **labels)
            for name, labels in (("requests_total", {"code": "OK"}), ("refused_total", {"reason": "OVERLOADED"}))
            for tenant in ("search", "batch")
        }
        encoded = [
            metric_value(server.metrics_url, "headwaiter_tenant_tokens_total", tenant=tenant)
            for tenant in ("search", "batch")
        ]
        page = metrics_page(server.metrics_url)
    assert read == {
        ("requests_total", "search"): 2,
        ("requests_total", "batch"): 1,
        ("refused_total", "search"): 0,
        ("refused_total", "batch"): 2,
    }
    assert encoded == [3 + 3, 60]
    assert "n0-such-token" not in page
    assert 'tenant=""' not in page
