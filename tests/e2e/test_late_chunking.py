"""With late chunking, a vector is the mean of a text's own rows in the context of all texts, as in transformers."""

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer

from headwaiter_client import Client
from testbed.server_process import RunningServer

CHUNKS = ["fresh bread", "rain falls on stone", "a table", "the bread  "]
# The tokens of each chunk in the joined text, after [CLS]; by hand, for the vocabulary of the test tokenizer.
JOINED = "fresh bread rain falls on stone a table the bread  "


def post(server: RunningServer, **fields: Any) -> Any:
    address = server.metrics_url.replace("/metrics", "/v1/embeddings")
    request = urllib.request.Request(address, json.dumps({"late_chunking": True, **fields}).encode())
    try:
        with urllib.request.urlopen(request) as response:
            return json.load(response)
    except urllib.error.HTTPError as refused:
        return {"status": refused.code, **json.load(refused)["error"]}


@pytest.fixture(scope="module")
def by_hand(text_checkpoint: Path) -> Any:
    """The means of rows of transformers' model, computed chunk by chunk."""
    tokenizer = Tokenizer.from_file(str(text_checkpoint / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    ids = tokenizer.encode(JOINED).ids
    model = transformers.BertModel.from_pretrained(text_checkpoint).eval()
    with torch.inference_mode():
        rows = model(torch.tensor([ids])).last_hidden_state[0].numpy()
    counts = [len(tokenizer.encode(chunk, add_special_tokens=False).ids) for chunk in CHUNKS]
    ends = 1 + np.cumsum(counts)
    assert ends[-1] + 1 == len(ids)
    return np.array([rows[end - count : end].mean(axis=0) for end, count in zip(ends, counts, strict=True)])


def test_vectors_are_means_of_rows_in_the_context_of_all_texts(http_server: RunningServer, by_hand: Any) -> None:
    reply = post(http_server, input=CHUNKS, normalize=False)
    vectors = np.array([each["embedding"] for each in reply["data"]])
    np.testing.assert_allclose(vectors, by_hand, rtol=0, atol=1e-6 * np.abs(by_hand).max())
    units = np.array([each["embedding"] for each in post(http_server, input=CHUNKS, dimensions=8)["data"]])
    expected = by_hand[:, :8] / np.linalg.norm(by_hand[:, :8], axis=1, keepdims=True)
    np.testing.assert_allclose(units, expected, rtol=0, atol=1e-6)
    assert reply["usage"]["total_tokens"] == len(JOINED.split()) + 2
    with Client(http_server.address) as client:
        alone = client.encode(CHUNKS).pooled
    assert np.abs(alone[:, :8] / np.linalg.norm(alone[:, :8], axis=1, keepdims=True) - units).max() > 0.01


def test_texts_that_are_too_long_together_are_refused_with_the_reason(http_server: RunningServer) -> None:
    refused = post(http_server, input=["fresh bread " * 8] * 2)
    assert (refused["status"], refused["code"], refused["param"]) == (400, "context_length_exceeded", "input")
    assert (refused["actual"], refused["limit"]) == (34, 32)
    assert refused["message"].startswith("the texts together have 34 tokens")


@pytest.mark.parametrize("fields", [{"encoding_format": "int8", "ranges": [[0], [1]]}, {"dimensions": 33}])
def test_options_that_do_not_fit_the_vectors_are_refused(http_server: RunningServer, fields: dict[str, Any]) -> None:
    refused = post(http_server, input=CHUNKS, **fields)
    assert refused["status"] == 400
    assert refused["param"] in fields
