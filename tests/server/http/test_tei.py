"""The form of Text Embeddings Inference becomes an EncodeRequest, and an EncodeResponse becomes a list of vectors."""

import json
from typing import Any

import numpy as np
import pytest

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import InvalidInput, Overloaded, Unavailable
from headwaiter_server.http.tei import embed_reply, error_body, read_embed_request


def read(**fields: Any) -> pb.EncodeRequest:
    return read_embed_request(json.dumps(fields).encode())


@pytest.mark.parametrize(
    ("fields", "truncation"),
    [
        ({}, pb.TRUNCATION_ERROR),
        ({"truncation_direction": "Left"}, pb.TRUNCATION_ERROR),
        ({"truncate": True}, pb.TRUNCATION_RIGHT),
        ({"truncate": True, "truncation_direction": "Left"}, pb.TRUNCATION_LEFT),
        ({"truncate": True, "truncation_direction": "right"}, pb.TRUNCATION_RIGHT),
    ],
)
def test_texts_are_truncated_only_on_request(fields: dict[str, Any], truncation: int) -> None:
    assert read(inputs=["a"], **fields).truncation == truncation


def test_vectors_have_unit_length_unless_the_request_says_otherwise() -> None:
    assert read(inputs="a").output.normalize
    request = read(inputs="a", normalize=False, prompt_name="query", dimensions=2)
    assert request.output == pb.OutputOptions(pooled=True, normalize=False, dimensions=2)
    assert request.texts == pb.Texts(values=["a"], prompt="query")


@pytest.mark.parametrize(
    ("fields", "field"),
    [({}, "inputs"), ({"inputs": "a", "truncate": "yes"}, "truncate"), ({"inputs": "a", "input": "a"}, "input")],
)
def test_a_wrong_body_is_refused_with_the_name_of_the_field(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read(**fields)
    assert caught.value.field == field


def test_the_reply_is_a_list_of_vectors() -> None:
    vectors = np.array([[0.1, 2.0], [3.0, -4.0]], "<f4")
    pooled = pb.Tensor(dtype=pb.DATA_TYPE_FLOAT32, shape=vectors.shape, data=vectors.tobytes())
    assert np.array_equal(np.float32(json.loads(embed_reply(pb.EncodeResponse(pooled=pooled)))), vectors)


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [(InvalidInput("x"), 400, "Validation"), (Overloaded("x"), 429, "Overloaded"), (Unavailable("x"), 503, "Backend")],
)
def test_an_error_has_a_type(error: Any, status: int, kind: str) -> None:
    assert json.loads(error_body(error, status)) == {"error": "x", "error_type": kind}
