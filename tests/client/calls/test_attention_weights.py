"""Requests for attention weights, and the results that are read from replies, without a network."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike

from headwaiter_client import HeadwaiterError, InvalidInput, OutputMissing
from headwaiter_client.calls.attention_weights import attend_request, read_attention
from headwaiter_proto import encoder_pb2 as pb
from tests.client.fake_server import attend_response


@pytest.mark.parametrize("field", ["layers", "heads"])
@pytest.mark.parametrize(("indices", "value"), [([], "empty"), ([0, -1], "-1"), ([2**32], "4294967296")])
def test_layers_and_heads_must_be_one_or_more_indices(field: str, indices: list[int], value: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        attend_request("a", **{field: indices})  # type: ignore[arg-type]
    assert refused.value.field == field
    assert field in str(refused.value)
    assert value in str(refused.value)


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


def test_a_query_must_not_be_negative() -> None:
    with pytest.raises(InvalidInput) as refused:
        attend_request("a", query=-1)
    assert refused.value.field == "query"
    assert "-1" in str(refused.value)


def test_numpy_integers_are_accepted_as_indices() -> None:
    request = attend_request("a", layers=np.arange(2), heads=[np.int64(3)], query=np.uint8(0))
    assert (list(request.layers), list(request.heads), request.HasField("query")) == ([0, 1], [3], True)


@pytest.mark.parametrize(
    ("sequence", "field", "shown"),
    [
        ([1.5, 2.0], "tokens.data", "float64"),
        ([[[1.0]]], "features.data", "3 dimensions"),
        (["a text"], "texts", "list"),
        ([[1.0], [2.0, 3.0]], "tokens.data", "array"),
        ([["a"]], "features.data", "<U1"),
        ("\ud800", "texts.values", "Unicode"),
    ],
)
def test_a_sequence_that_is_not_a_text_ids_or_features_is_refused(
    sequence: str | ArrayLike, field: str, shown: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        attend_request(sequence)
    assert refused.value.field == field
    assert shown in str(refused.value)


def test_each_request_gets_its_own_id() -> None:
    assert attend_request("a").request_id != attend_request("a").request_id


def test_the_arrays_are_writable() -> None:
    result = read_attention(attend_response(attend_request([1, 2], query=0)), 0.0)
    for array in (result.weights, result.context):
        assert array.flags.writeable


def test_an_output_that_is_missing_raises_an_error_that_says_why() -> None:
    result = read_attention(attend_response(attend_request([1, 2])), 0.0)
    for output, advice in (("context", "query"), ("tokens", "text")):
        with pytest.raises(OutputMissing, match=advice):
            getattr(result, output)


@pytest.mark.parametrize(
    "changes",
    [
        {"weights": [3, 2, 2]},
        {"weights": [1, 3, 2, 1]},
        {"weights": []},
        {"context": [1, 2]},
        {"context": [1, 1, 2]},
        {"tokens": ["one"]},
    ],
    ids=str,
)
def test_a_reply_with_arrays_of_a_wrong_shape_is_an_error(changes: dict[str, Any]) -> None:
    reply = attend_response(attend_request([1, 2], query=0))
    for field, change in changes.items():
        if field == "tokens":
            reply.tokens.extend(change)
        else:
            size = int(np.prod(change)) * 4
            getattr(reply, field).CopyFrom(pb.Tensor(dtype=pb.DATA_TYPE_FLOAT32, shape=change, data=bytes(size)))
    with pytest.raises(HeadwaiterError, match="same version"):
        read_attention(reply, 0.0)


@pytest.mark.parametrize("field", ["weights", "context"])
@pytest.mark.parametrize("dtype", [pb.DATA_TYPE_FLOAT32, pb.DATA_TYPE_INT8])
def test_a_reply_with_inconsistent_arrays_is_an_error(field: str, dtype: pb.DataType) -> None:
    reply = attend_response(attend_request([1, 2], query=0, request_id="r"))
    getattr(reply, field).CopyFrom(pb.Tensor(dtype=dtype, shape=[2, 3], data=b"\x00" * 4))
    with pytest.raises(HeadwaiterError) as error:
        read_attention(reply, 0.0)
    assert type(error.value) is HeadwaiterError
    assert error.value.request_id == "r"
