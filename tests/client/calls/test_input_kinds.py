"""The requests that the client builds from sequences and options, without a network."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headwaiter_client import InvalidInput
from headwaiter_proto import encoder_pb2 as pb
from tests.support.client.request_builders import features_request, texts_request, tokens_request

_INT64 = st.integers(-(2**63), 2**63 - 1)
# numpy cannot read them: a gradient is a RuntimeError, and another device a TypeError.
TENSORS = [(torch.ones(2, requires_grad=True), "Tensor"), (torch.ones(2, device="meta"), "Tensor")]
_DTYPES = {pb.DATA_TYPE_INT32: "<i4", pb.DATA_TYPE_INT64: "<i8"}


@given(st.lists(st.lists(st.integers(0, 30_000) | _INT64)))
def test_token_ids_are_sent_in_the_narrowest_type_that_holds_them(sequences: list[list[int]]) -> None:
    message = tokens_request(sequences).tokens

    flat = [value for sequence in sequences for value in sequence]
    fit = all(-(2**31) <= value < 2**31 for value in flat)
    assert message.dtype == (pb.DATA_TYPE_INT32 if fit else pb.DATA_TYPE_INT64)
    assert np.frombuffer(message.data, _DTYPES[message.dtype]).tolist() == flat
    assert list(message.lengths) == [len(sequence) for sequence in sequences]


@pytest.mark.parametrize("dtype", ["u1", "i2", ">i4", "u4", "i8", "u8"])
def test_token_ids_of_any_integer_type_are_accepted(dtype: str) -> None:
    message = tokens_request([np.array([7, 8], dtype), [9]]).tokens
    assert np.frombuffer(message.data, "<i4").tolist() == [7, 8, 9]


def test_features_are_sent_as_float16_only_if_all_are_float16() -> None:
    half, single, double = (np.array([[0.5, 1.5]], dtype) for dtype in ("f2", "f4", "f8"))

    assert features_request([half, half]).features == pb.FeatureSequences(
        dtype=pb.DATA_TYPE_FLOAT16, width=2, lengths=[1, 1], data=b"\x00\x38\x00\x3e" * 2
    )
    for other in (single, double, [[0.5, 1.5]]):
        assert features_request([half, other]).features == pb.FeatureSequences(
            dtype=pb.DATA_TYPE_FLOAT32, width=2, lengths=[1, 1], data=b"\x00\x00\x00\x3f\x00\x00\xc0\x3f" * 2
        )


def test_features_beyond_float32_are_sent_as_infinities() -> None:
    message = features_request([[[1e300, -1e300]]]).features
    assert np.frombuffer(message.data, "<f4").tolist() == [math.inf, -math.inf]


@pytest.mark.parametrize(
    ("request_of", "good", "bad", "field", "shown"),
    [
        *(
            (tokens_request, [1], sequence, "tokens.data", [shown])
            for sequence, shown in (
                ([1.5], "float64"),
                ([True], "bool"),
                ([2**63], "uint64"),
                ([2**64], "object"),
                (["cat"], "<U3"),
                (3, "0 dimensions"),
                ([[1, 2]], "2 dimensions"),
                ([[1], [2, 3]], "array"),
                *TENSORS,
            )
        ),
        *(
            (features_request, [[1.0, 2.0]], sequence, "features.data", shown)
            for sequence, *shown in (
                ([1.0, 2.0], "1 dimensions", "has 2"),
                ([["a", "b"]], "<U1"),
                ([[1j, 2j]], "complex128"),
                ([[1.0], [2.0, 3.0]], "array"),
                *TENSORS,
            )
        ),
        (features_request, [[1.0, 2.0]], [[1.0, 2.0, 3.0]], "features.width", ["width 3", "width 2"]),
        (texts_request, "a text", b"bytes", "texts.values", ["bytes"]),
        (texts_request, "a text", None, "texts.values", ["NoneType"]),
        (texts_request, "a text", "\ud800", "texts.values", ["U+D800", "character 0"]),
    ],
)
def test_a_sequence_of_another_kind_is_refused_with_its_index(
    request_of: Callable[[list[object]], object], good: object, bad: object, field: str, shown: list[str]
) -> None:
    with pytest.raises(InvalidInput) as caught:
        request_of([good, bad])
    assert (caught.value.sequence, caught.value.field) == (1, field)
    for fact in ("sequence 1 ", *shown):
        assert fact in str(caught.value)


def test_empty_lists_and_sequences_and_unknown_ids_are_left_for_the_server_to_refuse() -> None:
    assert texts_request([""]).texts.values == [""]
    assert texts_request([]).WhichOneof("input") == "texts"
    assert tokens_request([[]]).tokens.lengths == [0]
    assert tokens_request([[-1]]).tokens.lengths == [1]
    assert features_request([]).WhichOneof("input") == "features"
    assert features_request([np.empty((0, 4))]).features == pb.FeatureSequences(
        dtype=pb.DATA_TYPE_FLOAT32, width=4, lengths=[0]
    )


def test_each_option_sets_a_field_of_the_request() -> None:
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


def test_options_that_are_left_out_have_their_defaults_and_each_request_its_own_id() -> None:
    assert texts_request(["a"], request_id="r") == pb.EncodeRequest(
        request_id="r",
        texts=pb.Texts(values=["a"]),
        output=pb.OutputOptions(dtype=pb.DATA_TYPE_FLOAT32),
        priority=pb.PRIORITY_INTERACTIVE,
        truncation=pb.TRUNCATION_ERROR,
    )
    hidden = texts_request(["a"], hidden=True).output
    assert hidden == pb.OutputOptions(pooled=True, hidden=True, dtype=pb.DATA_TYPE_FLOAT32)
    assert texts_request(["a"]).request_id != texts_request(["a"]).request_id


@pytest.mark.parametrize(("normalize", "sent"), [(True, True), (False, False), (np.False_, False), (None, None)])
def test_normalize_is_sent_only_if_it_is_not_none(normalize: bool | None, sent: bool | None) -> None:
    output = texts_request(["a"], normalize=normalize, hidden=np.True_).output
    assert output.hidden
    assert (output.normalize if output.HasField("normalize") else None) is sent


@pytest.mark.parametrize(
    ("option", "value", "field", "shown"),
    [
        ("pooled", False, "output", []),
        ("model", "\ud800", "model", []),
        ("request_id", "\ud800", "request_id", []),
        ("prompt", "\ud800", "prompt", []),
        *(
            ("dtype", dtype, "output.dtype", [repr(dtype)])
            for dtype in ("float64", "nonsense", "f4,(", {"names": ["a"]})
        ),
        ("priority", "idle", "priority", ["'idle'", "'interactive'", "'bulk'"]),
        ("truncation", "middle", "truncation", ["'middle'", "'error'", "'left'", "'right'"]),
        ("pooling", "sum", "output.pooling", ["'sum'", "'mean'", "'cls'", "'max'", "'last'"]),
        ("dimensions", 0, "output.dimensions", ["value 0", "from 1"]),
        ("hidden_dtype", "float64", "output.hidden_dtype", ["'float64'", "float32", "float16", "int8"]),
    ],
    ids=ascii,
)
def test_an_option_with_a_wrong_value_is_refused(option: str, value: object, field: str, shown: list[str]) -> None:
    with pytest.raises(InvalidInput) as caught:
        texts_request(["a"], **{option: value})
    assert caught.value.field == field
    for fact in (option, *shown):
        assert fact in str(caught.value)


@pytest.mark.parametrize(
    ("option", "value", "accepted"),
    [
        *((option, "no", "a bool") for option in ("pooled", "hidden", "offsets", "partial")),
        *((option, None, "a str") for option in ("truncation", "prompt", "model", "request_id", "priority")),
        ("truncation", True, "a str"),
        ("pooling", ["cls"], "a str or None"),
        ("normalize", "no", "a bool or None"),
        ("dimensions", 1.5, "a whole number or None"),
    ],
)
def test_an_option_of_the_wrong_type_is_a_type_error_that_names_it(option: str, value: object, accepted: str) -> None:
    with pytest.raises(TypeError) as caught:
        texts_request(["a"], **{option: value})
    for fact in (option, type(value).__name__, accepted):
        assert fact in str(caught.value)
