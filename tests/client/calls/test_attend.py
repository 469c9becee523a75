"""Requests for attention weights, and the results that are read from replies, without a network."""

from typing import Any

import numpy as np
import pytest

from headwaiter_client import HeadwaiterError, InvalidInput, OutputMissing
from headwaiter_client.calls.attend import attend_request, read_attention
from headwaiter_proto import encoder_pb2 as pb
from tests.support.client.fake_server import attend_response


@pytest.mark.parametrize(
    ("argument", "value", "shown"),
    [
        ("layers", 1, "int"),
        ("layers", [0.5], "0.5"),
        ("heads", "01", "'0'"),
        ("query", 1.0, "1.0"),
        ("model", 3, "int"),
    ],
)
def test_an_argument_of_the_wrong_type_is_a_type_error(argument: str, value: Any, shown: str) -> None:
    with pytest.raises(TypeError) as refused:
        attend_request("a", **{argument: value})
    assert str(refused.value).startswith(argument)
    assert shown in str(refused.value)


@pytest.mark.parametrize(
    ("sequence", "options", "field", "shown"),
    [
        ("a", {"layers": []}, "layers", "empty"),
        ("a", {"heads": []}, "heads", "empty"),
        ("a", {"layers": [0, -1]}, "layers", "-1"),
        ("a", {"heads": [2**32]}, "heads", "4294967296"),
        ("a", {"query": -1}, "query", "-1"),
        ([1.5, 2.0], {}, "tokens.data", "float64"),
        ([[[1.0]]], {}, "features.data", "3 dimensions"),
        (["a text"], {}, "texts", "list"),
        ([[1.0], [2.0, 3.0]], {}, "tokens.data", "array"),
        ([["a"]], {}, "features.data", "<U1"),
        ("\ud800", {}, "texts.values", "D800"),
    ],
    ids=ascii,
)
def test_a_wrong_index_and_a_wrong_sequence_are_refused(
    sequence: Any, options: dict[str, Any], field: str, shown: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        attend_request(sequence, **options)
    assert refused.value.field == field
    assert shown in str(refused.value)
    assert not options or field in str(refused.value)


@pytest.mark.parametrize(
    ("sequence", "kind"),
    [
        ("a", "texts"),
        ([5, 6, 7], "tokens"),
        (np.array([5, 6, 7], np.uint8), "tokens"),
        (np.ones((3, 2)), "features"),
        ([[1, 2]] * 3, "features"),
    ],
    ids=ascii,
)
def test_the_kind_of_the_input_is_that_of_the_sequence(sequence: Any, kind: str) -> None:
    request = attend_request(sequence)
    assert request.WhichOneof("input") == kind
    assert (list(request.layers), list(request.heads), request.HasField("query")) == ([], [], False)


def test_numpy_integers_are_accepted_as_indices() -> None:
    request = attend_request("a", layers=np.arange(2), heads=[np.int64(3)], query=np.uint8(0))
    assert request.request_id != attend_request("a").request_id
    assert (list(request.layers), list(request.heads), request.HasField("query")) == ([0, 1], [3], True)


def test_an_output_that_is_missing_raises_an_error_that_says_why() -> None:
    result = read_attention(attend_response(attend_request([1, 2])), 0.0)
    for output, advice in (("context", "query"), ("tokens", "text")):
        with pytest.raises(OutputMissing, match=advice):
            getattr(result, output)


@pytest.mark.parametrize(
    ("field", "shape", "size_bytes", "dtype"),
    [
        ("weights", [3, 2, 2], 48, pb.DATA_TYPE_FLOAT32),
        ("weights", [1, 3, 2, 1], 24, pb.DATA_TYPE_FLOAT32),
        ("weights", [], 4, pb.DATA_TYPE_FLOAT32),
        ("context", [1, 2], 8, pb.DATA_TYPE_FLOAT32),
        ("context", [1, 1, 2], 8, pb.DATA_TYPE_FLOAT32),
        ("weights", [2, 3], 4, pb.DATA_TYPE_FLOAT32),
        ("context", [2, 3], 4, pb.DATA_TYPE_FLOAT32),
        ("weights", [2, 3, 2, 2], 24, pb.DATA_TYPE_INT8),
        ("context", [2, 3, 2], 12, pb.DATA_TYPE_INT8),
    ],
)
def test_a_reply_with_wrong_arrays_is_an_error(
    field: str, shape: list[int], size_bytes: int, dtype: pb.DataType
) -> None:
    reply = attend_response(attend_request([1, 2], query=0, request_id="r"))
    getattr(reply, field).CopyFrom(pb.Tensor(dtype=dtype, shape=shape, data=bytes(size_bytes)))
    with pytest.raises(HeadwaiterError, match="same version") as error:
        read_attention(reply, 0.0)
    assert type(error.value) is HeadwaiterError
    assert error.value.request_id == "r"


def test_a_reply_with_another_number_of_tokens_is_an_error() -> None:
    reply = attend_response(attend_request([1, 2]))
    reply.tokens.append("one")
    with pytest.raises(HeadwaiterError, match="same version"):
        read_attention(reply, 0.0)
