"""What requests hold and what results are read from replies, without a network."""

import math
import pickle
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import DTypeLike

from headwaiter_client import HeadwaiterError, InvalidInput, ModelRef, _core
from headwaiter_proto import encoder_pb2 as pb
from tests.client.fake_server import MODEL, answer

_INT64 = st.integers(-(2**63), 2**63 - 1)
_DTYPES = {pb.DATA_TYPE_INT32: "<i4", pb.DATA_TYPE_INT64: "<i8"}


@given(st.lists(st.lists(st.integers(0, 30_000) | _INT64)))
def test_token_ids_arrive_as_they_were_given_in_the_narrowest_type_that_holds_them(sequences: list[list[int]]) -> None:
    message = _core.tokens_request(sequences).tokens

    flat = [value for sequence in sequences for value in sequence]
    fit = all(-(2**31) <= value < 2**31 for value in flat)
    assert message.dtype == (pb.DATA_TYPE_INT32 if fit else pb.DATA_TYPE_INT64)
    assert np.frombuffer(message.data, _DTYPES[message.dtype]).tolist() == flat
    assert list(message.lengths) == [len(sequence) for sequence in sequences]


@pytest.mark.parametrize("dtype", ["u1", "i2", ">i4", "u4", "i8", "u8"])
def test_token_ids_of_any_integer_type_are_taken(dtype: str) -> None:
    message = _core.tokens_request([np.array([7, 8], dtype), [9]]).tokens
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
        _core.tokens_request([[1], sequence])  # type: ignore[list-item]
    assert (caught.value.sequence, caught.value.field) == (1, "tokens.data")


def test_work_is_interactive_unless_it_is_said_to_be_bulk() -> None:
    assert _core.tokens_request([[1]]).priority == pb.PRIORITY_INTERACTIVE
    assert _core.tokens_request([[1]], priority="bulk").priority == pb.PRIORITY_BULK
    with pytest.raises(InvalidInput, match="priority is 'idle'; it is 'interactive' or 'bulk'") as caught:
        _core.tokens_request([[1]], priority="idle")  # type: ignore[arg-type]
    assert caught.value.field == "priority"


@pytest.mark.parametrize(
    "tensor",
    [
        pytest.param(torch.ones(2, requires_grad=True), id="a gradient, a RuntimeError"),
        pytest.param(torch.ones(2, device="meta"), id="another device, a TypeError"),
    ],
)
def test_a_tensor_that_numpy_cannot_see_is_refused_by_its_index(tensor: torch.Tensor) -> None:
    for request, field in ((_core.tokens_request, "tokens.data"), (_core.features_request, "features.data")):
        good = [[1.0]] if field == "features.data" else [1]
        with pytest.raises(InvalidInput, match=r"^sequence 1 is no array: .*Tensor") as caught:
            request([good, tensor])
        assert (caught.value.sequence, caught.value.field) == (1, field)


def test_features_go_as_float32_and_as_float16_only_when_all_are() -> None:
    half, single, double = (np.array([[0.5, 1.5]], dtype) for dtype in ("f2", "f4", "f8"))

    assert _core.features_request([half, half]).features == pb.FeatureSequences(
        dtype=pb.DATA_TYPE_FLOAT16, width=2, lengths=[1, 1], data=b"\x00\x38\x00\x3e" * 2
    )
    for other in (single, double, [[0.5, 1.5]]):
        assert _core.features_request([half, other]).features == pb.FeatureSequences(
            dtype=pb.DATA_TYPE_FLOAT32, width=2, lengths=[1, 1], data=b"\x00\x00\x00\x3f\x00\x00\xc0\x3f" * 2
        )


def test_features_beyond_float32_go_as_infinities_for_the_server_to_refuse() -> None:
    message = _core.features_request([[[1e300, -1e300]]]).features
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
        _core.features_request([[[1.0, 2.0]], sequence])  # type: ignore[list-item]
    assert (caught.value.sequence, caught.value.field) == (1, field)


def test_one_str_in_place_of_a_list_of_texts_is_refused() -> None:
    with pytest.raises(InvalidInput, match="pass a list of texts"):
        _core.texts_request("a text")


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
        _core.texts_request(["a text", text])  # type: ignore[list-item]
    assert (caught.value.sequence, caught.value.field) == (1, "texts.values")


def test_what_the_server_should_judge_is_sent_to_it() -> None:
    assert _core.texts_request([""]).texts.values == [""]
    assert _core.texts_request([]).WhichOneof("input") == "texts"
    assert _core.tokens_request([[]]).tokens.lengths == [0]
    assert _core.tokens_request([[-1]]).tokens.lengths == [1]
    assert _core.features_request([]).WhichOneof("input") == "features"
    assert _core.features_request([np.empty((0, 4))]).features == pb.FeatureSequences(
        dtype=pb.DATA_TYPE_FLOAT32, width=4, lengths=[0]
    )


def test_options_become_fields_of_the_request() -> None:
    request = _core.texts_request(["a"], hidden=True, pooled=False, dtype=np.float16, model="m", request_id="r")
    assert request == pb.EncodeRequest(
        model="m",
        request_id="r",
        priority=pb.PRIORITY_INTERACTIVE,
        texts=pb.Texts(values=["a"]),
        output=pb.OutputOptions(hidden=True, dtype=pb.DATA_TYPE_FLOAT16),
    )


def test_hidden_states_come_beside_pooled_vectors() -> None:
    output = _core.texts_request(["a"], hidden=True).output
    assert output == pb.OutputOptions(pooled=True, hidden=True, dtype=pb.DATA_TYPE_FLOAT32)


@pytest.mark.parametrize("normalize", [True, False, None])
def test_normalisation_is_the_models_own_choice_unless_asked_for(normalize: bool | None) -> None:
    output = _core.texts_request(["a"], normalize=normalize).output
    assert (output.normalize if output.HasField("normalize") else None) is normalize


@pytest.mark.parametrize("field", ["model", "request_id"])
@pytest.mark.parametrize(
    ("value", "sentence"), [(3, "{} is of type int; it must be a str"), ("\ud800", "{} is not Unicode text")]
)
def test_what_is_no_name_is_refused_by_its_field(field: str, value: object, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=_literal(sentence.format(field))) as caught:
        _core.texts_request(["a"], **{field: value})  # type: ignore[arg-type]
    assert caught.value.field == field


def test_requests_get_ids_of_their_own() -> None:
    first, second = (_core.texts_request(["a"]).request_id for _ in range(2))
    assert first != second


def test_a_request_for_no_output_is_refused() -> None:
    with pytest.raises(InvalidInput, match="ask for pooled, hidden or both"):
        _core.texts_request(["a"], pooled=False)


@pytest.mark.parametrize("dtype", ["float64", "int8", "nonsense", "f4,(", {"names": ["a"]}])
def test_results_are_float32_or_float16(dtype: DTypeLike) -> None:
    with pytest.raises(InvalidInput, match="results are float32 or float16") as caught:
        _core.texts_request(["a"], dtype=dtype)
    assert caught.value.field == "output.dtype"


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_reply_is_read_into_arrays_one_row_a_sequence_and_one_a_token(dtype: str) -> None:
    reply = answer(_core.tokens_request([[1, 2], [3], [4, 5, 6]], hidden=True, dtype=dtype))
    result = _core.encoding(reply, round_trip_s=20.0)

    assert result.pooled is not None
    assert result.hidden is not None
    assert result.pooled.tolist() == [[0, 0, 0], [0.5, 0.5, 0.5], [1, 1, 1]]
    assert [rows.tolist() for rows in result.hidden] == [[[0] * 3] * 2, [[1] * 3], [[2] * 3] * 3]
    assert {rows.dtype for rows in (result.pooled, *result.hidden)} == {np.dtype(dtype)}
    assert result.lengths.tolist() == [2, 1, 3]
    assert result.model == ModelRef(MODEL.name, MODEL.digest)
    assert result.request_id == reply.request_id


def test_the_servers_stages_and_the_clients_round_trip_stand_side_by_side() -> None:
    timings = _core.encoding(answer(_core.texts_request(["a"])), round_trip_s=20.0).timings
    assert timings == _core.Timings(
        round_trip_s=20, tokenize_s=1, queue_s=2, assemble_s=3, compute_s=4, respond_s=5, total_s=15, batches=2
    )


def test_hidden_states_are_views_that_lie_end_to_end_in_one_buffer() -> None:
    hidden = _core.encoding(answer(_core.tokens_request([[1, 2], [3], [4]], hidden=True)), 0.0).hidden
    assert hidden is not None
    starts = [rows.ctypes.data for rows in hidden]
    assert starts[1:] == [start + rows.nbytes for start, rows in zip(starts[:-1], hidden[:-1], strict=True)]


def test_outputs_that_the_reply_does_not_hold_are_none() -> None:
    assert _core.encoding(answer(_core.texts_request(["a"])), 0.0).hidden is None
    assert _core.encoding(answer(_core.texts_request(["a"], pooled=False, hidden=True)), 0.0).pooled is None


def test_a_result_survives_pickling() -> None:
    result = _core.encoding(answer(_core.tokens_request([[1, 2], [3]], hidden=True)), 1.0)
    copy: _core.Encoding = pickle.loads(pickle.dumps(result))
    np.testing.assert_array_equal(copy.pooled, result.pooled)
    assert (copy.timings, copy.model) == (result.timings, result.model)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("pooled", pb.Tensor(dtype=pb.DATA_TYPE_INT8, shape=[1, 1], data=b"\x00")),
        ("pooled", pb.Tensor(dtype=pb.DATA_TYPE_FLOAT32, shape=[2, 3], data=b"\x00" * 4)),
        ("hidden", pb.Tensor(dtype=pb.DATA_TYPE_FLOAT32, shape=[2, 1], data=b"\x00" * 8)),
        ("hidden", pb.Tensor(dtype=pb.DATA_TYPE_FLOAT32, shape=[], data=b"\x00" * 4)),
    ],
)
def test_a_reply_that_does_not_hold_what_it_says_is_an_error(field: str, value: pb.Tensor) -> None:
    reply = pb.EncodeResponse(request_id="r", lengths=[1])
    getattr(reply, field).CopyFrom(value)
    with pytest.raises(HeadwaiterError, match="the reply cannot be read") as caught:
        _core.encoding(reply, 0.0)
    assert caught.value.request_id == "r"


def _literal(sentence: str) -> str:
    return "^" + re.escape(sentence)
