"""What requests hold, without a network."""

import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import DTypeLike

from headwaiter_client import InvalidInput
from headwaiter_client.calls.options import RequestOptions
from headwaiter_proto import encoder_pb2 as pb
from tests.client.requests import features_request, texts_request, tokens_request

_INT64 = st.integers(-(2**63), 2**63 - 1)
_DTYPES = {pb.DATA_TYPE_INT32: "<i4", pb.DATA_TYPE_INT64: "<i8"}


@given(st.lists(st.lists(st.integers(0, 30_000) | _INT64)))
def test_token_ids_arrive_as_they_were_given_in_the_narrowest_type_that_holds_them(sequences: list[list[int]]) -> None:
    message = tokens_request(sequences).tokens

    flat = [value for sequence in sequences for value in sequence]
    fit = all(-(2**31) <= value < 2**31 for value in flat)
    assert message.dtype == (pb.DATA_TYPE_INT32 if fit else pb.DATA_TYPE_INT64)
    assert np.frombuffer(message.data, _DTYPES[message.dtype]).tolist() == flat
    assert list(message.lengths) == [len(sequence) for sequence in sequences]


@pytest.mark.parametrize("dtype", ["u1", "i2", ">i4", "u4", "i8", "u8"])
def test_token_ids_of_any_integer_type_are_taken(dtype: str) -> None:
    message = tokens_request([np.array([7, 8], dtype), [9]]).tokens
    assert np.frombuffer(message.data, "<i4").tolist() == [7, 8, 9]


@pytest.mark.parametrize(
    ("sequence", "sentence"),
    [
        ([1.5], "sequence 1 holds float64 values; token ids are integers below 2**63"),
        ([True], "sequence 1 holds bool values"),
        ([2**63], "sequence 1 holds uint64 values"),
        ([2**64], "sequence 1 holds object values"),
        (["cat"], "sequence 1 holds <U3 values"),
        (3, "sequence 1 has 0 dimensions; a sequence of tokens has 1"),
        ([[1, 2]], "sequence 1 has 2 dimensions"),
        ([[1], [2, 3]], "sequence 1 is no array"),
    ],
)
def test_what_is_no_sequence_of_token_ids_is_refused_by_its_index(sequence: object, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=_literal(sentence)) as caught:
        tokens_request([[1], sequence])
    assert (caught.value.sequence, caught.value.field) == (1, "tokens.data")


def test_work_is_interactive_unless_it_is_said_to_be_bulk() -> None:
    assert tokens_request([[1]]).priority == pb.PRIORITY_INTERACTIVE
    assert tokens_request([[1]], priority="bulk").priority == pb.PRIORITY_BULK


@pytest.mark.parametrize(
    "tensor",
    [
        pytest.param(torch.ones(2, requires_grad=True), id="a gradient, a RuntimeError"),
        pytest.param(torch.ones(2, device="meta"), id="another device, a TypeError"),
    ],
)
def test_a_tensor_that_numpy_cannot_see_is_refused_by_its_index(tensor: torch.Tensor) -> None:
    for request, field in ((tokens_request, "tokens.data"), (features_request, "features.data")):
        good = [[1.0]] if field == "features.data" else [1]
        with pytest.raises(InvalidInput, match=r"^sequence 1 is no array: .*Tensor") as caught:
            request([good, tensor])
        assert (caught.value.sequence, caught.value.field) == (1, field)


def test_features_go_as_float32_and_as_float16_only_when_all_are() -> None:
    half, single, double = (np.array([[0.5, 1.5]], dtype) for dtype in ("f2", "f4", "f8"))

    assert features_request([half, half]).features == pb.FeatureSequences(
        dtype=pb.DATA_TYPE_FLOAT16, width=2, lengths=[1, 1], data=b"\x00\x38\x00\x3e" * 2
    )
    for other in (single, double, [[0.5, 1.5]]):
        assert features_request([half, other]).features == pb.FeatureSequences(
            dtype=pb.DATA_TYPE_FLOAT32, width=2, lengths=[1, 1], data=b"\x00\x00\x00\x3f\x00\x00\xc0\x3f" * 2
        )


def test_features_beyond_float32_go_as_infinities_for_the_server_to_refuse() -> None:
    message = features_request([[[1e300, -1e300]]]).features
    assert np.frombuffer(message.data, "<f4").tolist() == [math.inf, -math.inf]


@pytest.mark.parametrize(
    ("sequence", "field", "sentence"),
    [
        ([1.0, 2.0], "features.data", "sequence 1 has 1 dimensions; a sequence of features has 2"),
        ([["a", "b"]], "features.data", "sequence 1 holds <U1 values; features are real numbers"),
        ([[1j, 2j]], "features.data", "sequence 1 holds complex128 values"),
        ([[1.0], [2.0, 3.0]], "features.data", "sequence 1 is no array"),
        ([[1.0, 2.0, 3.0]], "features.width", "sequence 1 is 3 wide and the first 2"),
    ],
)
def test_what_is_no_sequence_of_features_is_refused_by_its_index(sequence: object, field: str, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=_literal(sentence)) as caught:
        features_request([[[1.0, 2.0]], sequence])
    assert (caught.value.sequence, caught.value.field) == (1, field)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"bytes", "sequence 1 is of type bytes; texts are str"),
        (None, "sequence 1 is of type NoneType"),
        ("\ud800", "sequence 1 is not Unicode text"),
    ],
)
def test_what_is_no_text_is_refused_by_its_index(text: object, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=_literal(sentence)) as caught:
        texts_request(["a text", text])
    assert (caught.value.sequence, caught.value.field) == (1, "texts.values")


def test_what_the_server_should_judge_is_sent_to_it() -> None:
    assert texts_request([""]).texts.values == [""]
    assert texts_request([]).WhichOneof("input") == "texts"
    assert tokens_request([[]]).tokens.lengths == [0]
    assert tokens_request([[-1]]).tokens.lengths == [1]
    assert features_request([]).WhichOneof("input") == "features"
    assert features_request([np.empty((0, 4))]).features == pb.FeatureSequences(
        dtype=pb.DATA_TYPE_FLOAT32, width=4, lengths=[0]
    )


def test_options_become_fields_of_the_request() -> None:
    request = texts_request(
        ["a"],
        hidden=True,
        pooled=False,
        dtype=np.int8,
        hidden_dtype="float16",
        pooling="cls",
        dimensions=np.int64(64),
        truncation="left",
        prompt="query",
        offsets=True,
        partial=True,
        model="m",
        request_id="r",
        priority="bulk",
    )
    assert request == pb.EncodeRequest(
        model="m",
        request_id="r",
        priority=pb.PRIORITY_BULK,
        truncation=pb.TRUNCATION_LEFT,
        partial=True,
        texts=pb.Texts(values=["a"], prompt="query"),
        output=pb.OutputOptions(
            hidden=True,
            dtype=pb.DATA_TYPE_INT8,
            hidden_dtype=pb.DATA_TYPE_FLOAT16,
            pooling=pb.POOLING_CLS,
            dimensions=64,
            offsets=True,
        ),
    )


def test_what_is_left_out_is_the_models_own_or_off() -> None:
    assert texts_request(["a"], request_id="r") == pb.EncodeRequest(
        request_id="r",
        texts=pb.Texts(values=["a"]),
        output=pb.OutputOptions(dtype=pb.DATA_TYPE_FLOAT32),
        priority=pb.PRIORITY_INTERACTIVE,
        truncation=pb.TRUNCATION_ERROR,
    )


def test_hidden_states_come_beside_pooled_vectors() -> None:
    output = texts_request(["a"], hidden=True).output
    assert output == pb.OutputOptions(pooled=True, hidden=True, dtype=pb.DATA_TYPE_FLOAT32)


@pytest.mark.parametrize("normalize", [True, False, None])
def test_normalisation_is_the_models_own_choice_unless_asked_for(normalize: bool | None) -> None:
    output = texts_request(["a"], normalize=normalize).output
    assert (output.normalize if output.HasField("normalize") else None) is normalize


@pytest.mark.parametrize("field", ["model", "request_id", "prompt"])
def test_what_is_no_name_is_refused_by_its_field(field: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{field} is not Unicode text") as caught:
        texts_request(["a"], **{field: "\ud800"})
    assert caught.value.field == field


def test_requests_get_ids_of_their_own() -> None:
    first, second = (texts_request(["a"]).request_id for _ in range(2))
    assert first != second


def test_a_request_for_no_output_is_refused() -> None:
    with pytest.raises(InvalidInput, match="ask for pooled, hidden or both"):
        texts_request(["a"], pooled=False)


@pytest.mark.parametrize(
    ("option", "value", "field", "sentence"),
    [
        ("priority", "idle", "priority", "priority is 'idle'; it is 'interactive' or 'bulk'"),
        ("truncation", "middle", "truncation", "truncation is 'middle'; it is 'error', 'left' or 'right'"),
        ("pooling", "sum", "output.pooling", "pooling is 'sum'; it is None, 'mean', 'cls', 'max' or 'last'"),
        ("dimensions", 0, "output.dimensions", "output.dimensions has 0; it takes whole numbers from 1"),
        (
            "hidden_dtype",
            "float64",
            "output.hidden_dtype",
            "hidden_dtype is 'float64'; results are float32, float16 or int8",
        ),
    ],
)
def test_an_option_with_a_value_that_it_does_not_take_is_refused(
    option: str, value: object, field: str, sentence: str
) -> None:
    with pytest.raises(InvalidInput, match=_literal(sentence) + "$") as caught:
        texts_request(["a"], **{option: value})
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("option", "value", "what"),
    [
        *((option, "no", "a bool") for option in ("pooled", "hidden", "offsets", "partial")),
        *((option, None, "a str") for option in ("truncation", "prompt", "model", "request_id", "priority")),
        ("truncation", True, "a str"),
        ("pooling", ["cls"], "a str or None"),
        ("normalize", "no", "a bool or None"),
        ("dimensions", 1.5, "a whole number or None"),
    ],
)
def test_an_option_of_another_type_is_a_type_error_that_names_it(option: str, value: object, what: str) -> None:
    with pytest.raises(TypeError, match=f"^{option} is of type {type(value).__name__}; it must be {what}$"):
        texts_request(["a"], **{option: value})


def test_the_booleans_of_numpy_are_booleans() -> None:
    output = texts_request(["a"], hidden=np.True_, normalize=np.False_).output
    assert (output.hidden, output.HasField("normalize"), output.normalize) == (True, True, False)


def test_all_options_of_requests_are_known_and_no_others() -> None:
    with pytest.raises(TypeError) as caught:
        texts_request(["a"], hiden=True)
    assert str(caught.value) == f"there is no option hiden here; there are {', '.join(RequestOptions.__annotations__)}"


@pytest.mark.parametrize("dtype", ["float64", "nonsense", "f4,(", {"names": ["a"]}])
def test_results_are_float32_float16_or_int8(dtype: DTypeLike) -> None:
    with pytest.raises(InvalidInput, match="results are float32, float16 or int8") as caught:
        texts_request(["a"], dtype=dtype)
    assert caught.value.field == "output.dtype"


def _literal(sentence: str) -> str:
    return "^" + re.escape(sentence)
