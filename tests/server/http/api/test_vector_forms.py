"""Vectors as int8, uint8 and bits have the bytes of sentence-transformers, and keep the directions of float32."""

from typing import Any

import numpy as np
import pytest

from headwaiter_proto.rules.errors import InvalidInput
from tests.support.oracle import Array
from tests.support.server.questions import adapt, answer, ask

SMALL_FORMS = ("int8", "uint8", "binary", "ubinary")
PATHS = {
    "/v1/embeddings": ("input", "encoding_format", "embedding_type", "encoding_type"),
    "/pooling": ("input", "encoding_format"),
    "/v1/embed": ("texts", "embedding_types"),
    "/v2/embed": ("texts", "embedding_types"),
}


def unit_vectors(count: int, width: int) -> Array:
    vectors = np.random.default_rng(0).normal(size=(count, width)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def vectors_of_reply(path: str, field: str, form: str, vectors: Array, **more: Any) -> Any:
    several = field == "embedding_types"
    body = {PATHS[path][0]: ["a"] * len(vectors), field: [form] if several else form, **more}
    content = answer(ask(path, body), vectors)
    if several:
        return content["embeddings"][form]
    return [each.get("embedding", each.get("data")) for each in content["data"]]


@pytest.mark.parametrize("form", SMALL_FORMS)
def test_bytes_are_those_of_sentence_transformers(form: str, runs_transformers: None) -> None:
    quantization = pytest.importorskip("sentence_transformers.util.quantization")
    vectors = unit_vectors(100, 48)
    # A tenth of the numbers lies outside the ranges, and one dimension has a single number.
    ranges = np.quantile(vectors, (0.05, 0.95), axis=0).astype(np.float32)
    ranges[1, 0] = ranges[0, 0]
    given = {"ranges": ranges.tolist()} if form.endswith("int8") else {}
    expected = quantization.quantize_embeddings(vectors, form, ranges)
    for path, (_, *fields) in PATHS.items():
        for field in fields:
            assert vectors_of_reply(path, field, form, vectors, **given) == expected.tolist()


@pytest.mark.parametrize(("form", "zero"), [("int8", 0), ("uint8", 128)])
def test_without_ranges_the_largest_magnitude_of_each_vector_becomes_127(form: str, zero: int) -> None:
    vectors = unit_vectors(50, 48)
    rows = np.array(vectors_of_reply("/v1/embeddings", "encoding_format", form, vectors)) - zero
    assert (np.abs(rows).max(axis=1) == 127).all()
    exact = vectors / np.abs(vectors).max(axis=1, keepdims=True) * 127
    assert np.abs(rows - exact).max() <= 0.5001
    cosines = (rows * vectors).sum(axis=1) / np.linalg.norm(rows, axis=1)
    assert cosines.min() > 0.9998
    assert vectors_of_reply("/v1/embeddings", "encoding_format", form, np.zeros((1, 3))) == [[zero] * 3]


def test_bits_of_a_width_that_is_no_multiple_of_eight_end_with_zeros() -> None:
    vectors = np.array([[0.5, 0.0, -0.5, 1e-30, 0, 0, 0, 0, 2.0, -0.0]], np.float32)
    assert vectors_of_reply("/v1/embeddings", "encoding_format", "ubinary", vectors) == [[0b10010000, 0b10000000]]
    assert vectors_of_reply("/v1/embeddings", "encoding_format", "binary", vectors) == [[0b10010000 - 128, 0]]


@pytest.mark.parametrize(
    "ranges",
    [
        *(1, [], [[0, 1]], [0, 1], [[0], [1, 2]], [[0], ["1"]], [[0], [True]], [[0], [1], [2]]),
        *([[2], [1]], [[0], [1e39]], [[1e39], [1e39]], [[-3e38], [3e38]]),
    ],
)
def test_ranges_that_are_no_ranges_are_refused(ranges: Any) -> None:
    with pytest.raises(InvalidInput) as refused:
        ask("/v1/embeddings", {"input": "a", "encoding_format": "int8", "ranges": ranges})
    assert refused.value.field == "ranges"


@pytest.mark.parametrize(
    ("fields", "limit", "actual"),
    [
        ({"encoding_format": "int8"}, 3, 2),
        ({"encoding_format": "uint8", "dimensions": 1}, 1, 2),
        ({"encoding_format": "ubinary", "dimensions": 2}, None, None),
        ({"dimensions": 2}, None, None),
    ],
)
def test_ranges_that_do_not_fit_the_reply_are_refused_before_the_model_runs(
    fields: dict[str, Any], limit: int | None, actual: int | None
) -> None:
    asked = ask("/v1/embeddings", {"input": "a", "ranges": [[0, 0], [1, 1]], **fields})
    with pytest.raises(InvalidInput) as refused:
        adapt(asked, width=3)
    assert (refused.value.field, refused.value.limit, refused.value.actual) == ("ranges", limit, actual)


def test_ranges_of_the_width_of_the_reply_are_taken() -> None:
    body = {"input": "a", "encoding_format": "int8", "ranges": [[0, 0], [1, 1]]}
    adapt(ask("/v1/embeddings", body), width=2)
    adapt(ask("/v1/embeddings", {**body, "dimensions": 2}), width=3)
