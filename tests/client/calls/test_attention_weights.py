"""What requests for attention hold, and what is read from replies, without a network."""

import re
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike

from headwaiter_client import HeadwaiterError, InvalidInput
from headwaiter_client.calls.attention_weights import attend_request, attention
from headwaiter_proto import encoder_pb2 as pb
from tests.client.fake_server import look


@pytest.mark.parametrize("field", ["layers", "heads"])
@pytest.mark.parametrize(
    ("indices", "sentence"),
    [
        ([], "{} is empty; leave it out for all of them"),
        ([0, -1], "{} has -1; it takes whole numbers from 0"),
        ([2**32], "{} has 4294967296; it takes whole numbers from 0"),
    ],
)
def test_layers_and_heads_that_cannot_be_any_are_refused(field: str, indices: object, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{re.escape(sentence.format(field))}$") as refused:
        attend_request("a", **{field: indices})  # type: ignore[arg-type]
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("argument", "value", "sentence"),
    [
        ("layers", 1, "layers is of type int; it must be a list, such as [0]"),
        ("layers", [0.5], "layers has 0.5; it takes whole numbers from 0"),
        ("heads", "01", "heads has '0'; it takes whole numbers from 0"),
        ("query", 1.0, "query has 1.0; it takes whole numbers from 0"),
        ("model", 3, "model is of type int; it must be a str"),
    ],
)
def test_an_argument_of_another_type_is_a_type_error(argument: str, value: Any, sentence: str) -> None:
    with pytest.raises(TypeError, match=f"^{re.escape(sentence)}$"):
        attend_request("a", **{argument: value})


def test_a_query_is_a_position() -> None:
    with pytest.raises(InvalidInput, match="it takes whole numbers from 0") as refused:
        attend_request("a", query=-1)
    assert refused.value.field == "query"


def test_numbers_of_numpy_are_taken_for_indices() -> None:
    request = attend_request("a", layers=np.arange(2), heads=[np.int64(3)], query=np.uint8(0))
    assert (list(request.layers), list(request.heads), request.HasField("query")) == ([0, 1], [3], True)


@pytest.mark.parametrize(
    ("sequence", "field", "sentence"),
    [
        ([1.5, 2.0], "tokens.data", "sequence 0 holds float64 values"),
        ([[[1.0]]], "features.data", "sequence 0 has 3 dimensions; a sequence of features has 2"),
        (["a text"], "texts", "sequence is a list of texts; pass one text by itself"),
        ([[1.0], [2.0, 3.0]], "tokens.data", "sequence 0 is no array"),
        ([["a"]], "features.data", "sequence 0 holds <U1 values"),
        ("\ud800", "texts.values", "sequence 0 is not Unicode text"),
    ],
)
def test_what_is_no_sequence_is_refused(sequence: str | ArrayLike, field: str, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(sentence)) as refused:
        attend_request(sequence)
    assert refused.value.field == field


def test_requests_for_attention_get_ids_of_their_own() -> None:
    assert attend_request("a").request_id != attend_request("a").request_id


def test_the_arrays_are_views_that_nobody_can_write_to() -> None:
    result = attention(look(attend_request([1, 2], query=0)), 0.0)
    assert result.context is not None
    for array in (result.weights, result.context):
        assert not array.flags.owndata
        assert not array.flags.writeable


@pytest.mark.parametrize("field", ["weights", "context"])
@pytest.mark.parametrize("dtype", [pb.DATA_TYPE_FLOAT32, pb.DATA_TYPE_INT8])
def test_a_reply_that_does_not_hold_what_it_says_is_an_error(field: str, dtype: pb.DataType) -> None:
    reply = look(attend_request([1, 2], query=0, request_id="r"))
    getattr(reply, field).CopyFrom(pb.Tensor(dtype=dtype, shape=[2, 3], data=b"\x00" * 4))
    with pytest.raises(HeadwaiterError, match="the reply cannot be read") as error:
        attention(reply, 0.0)
    assert error.value.request_id == "r"
