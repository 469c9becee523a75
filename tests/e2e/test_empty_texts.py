"""An empty text has the vector of sentence-transformers: that of its special tokens, over gRPC and HTTP."""

import asyncio
import json
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.e2e.in_process_server import connect, metrics_url, serving

TEXTS = ["", "bread", " \n", "\u3000"]


async def test_empty_texts_have_the_vectors_of_sentence_transformers(text_bundle: Path, text_checkpoint: Path) -> None:
    from sentence_transformers import SentenceTransformer

    expected = SentenceTransformer(str(text_checkpoint), device="cpu").encode(TEXTS)
    async with serving(text_bundle) as server, connect(server) as client:
        together = await client.encode(TEXTS)
        alone = [(await client.encode([text])).pooled for text in TEXTS]
        assert (await client.attend("")).tokens == ["[CLS]", "[SEP]"]
    assert together.pooled is not None
    np.testing.assert_allclose(together.pooled, expected, atol=1e-5)
    np.testing.assert_allclose(np.concatenate([each for each in alone if each is not None]), expected, atol=1e-5)
    np.testing.assert_array_equal(together.pooled[0], together.pooled[2])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": TEXTS}),
        ("/pooling", {"input": TEXTS}),
        ("/embed", {"inputs": TEXTS}),
        ("/v2/embed", {"texts": TEXTS}),
        (
            "/v2/models/tiny-text/infer",
            {"inputs": [{"name": "text", "shape": [4], "datatype": "BYTES", "data": TEXTS}]},
        ),
    ],
)
async def test_http_gives_the_vectors_of_grpc(path: str, body: Any, text_bundle: Path) -> None:
    async with serving(text_bundle, http_api="on") as server, connect(server) as client:
        expected = (await client.encode(TEXTS)).pooled
        url = metrics_url(server).replace("/metrics", path)
        reply = await asyncio.to_thread(urllib.request.urlopen, urllib.request.Request(url, json.dumps(body).encode()))
        content = json.load(reply)
    rows = content
    match content:
        case {"data": rows}:
            rows = [row.get("embedding", row.get("data")) for row in rows]
        case {"embeddings": {"float": rows}}:
            pass
        case {"outputs": [{"data": values}]}:
            rows = np.reshape(values, (len(TEXTS), -1))
    np.testing.assert_allclose(rows, expected, rtol=0, atol=1e-6)
