"""A ModelInferRequest becomes the EncodeRequest that means the same, or is refused with the name of what is wrong."""

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto import open_inference_pb2 as oip
from headwaiter_proto.rules.errors import HeadwaiterError, InvalidInput, Unimplemented
from headwaiter_proto.rules.limits import RequestLimits
from headwaiter_server.open_inference.infer_requests import WantedReply, read_infer_request
from headwaiter_server.rpc.open_inference.messages import read_message
from tests.support.e2e.open_inference_caller import raw_request

LIMITS = RequestLimits(sequences=4, tokens=100, message_bytes=10_000, attend_bytes=0)
IDS = np.array([[1, 2, 3], [4, 0, 0]])
MASK = np.array([[1, 1, 1], [1, 0, 0]])


def read(request: oip.ModelInferRequest, *more: Any, **options: Any) -> tuple[pb.EncodeRequest, WantedReply]:
    return read_infer_request(read_message(request), *more, **options)


def infer_request(**fields: Any) -> oip.ModelInferRequest:
    """Return a valid request with further fields."""
    request = raw_request("m", input_ids=IDS)
    request.MergeFrom(oip.ModelInferRequest(**fields))
    return request


def with_parameter(name: str, texts: bool = False, **value: Any) -> oip.ModelInferRequest:
    request = raw_request("m", texts=["a"]) if texts else raw_request("m", input_ids=IDS)
    request.parameters[name].CopyFrom(oip.InferParameter(**value))
    return request


def with_shape(name: str, datatype: str, shape: list[int]) -> oip.ModelInferRequest:
    request = oip.ModelInferRequest(raw_input_contents=[b""])
    request.inputs.add(name=name, datatype=datatype, shape=shape)
    return request


def twice(request: oip.ModelInferRequest) -> oip.ModelInferRequest:
    request.inputs.append(request.inputs[0])
    request.raw_input_contents.append(request.raw_input_contents[0])
    return request


def with_contents(request: oip.ModelInferRequest) -> oip.ModelInferRequest:
    request.inputs[0].contents.int64_contents.append(1)
    return request


def check_packed(sequences: list[NDArray[Any]], tokens: pb.TokenSequences) -> None:
    assert list(tokens.lengths) == [len(sequence) for sequence in sequences]
    dtype = "<i8" if tokens.dtype == pb.DATA_TYPE_INT64 else "<i4"
    np.testing.assert_array_equal(np.frombuffer(tokens.data, dtype), np.concatenate(sequences))


@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5), min_size=1, max_size=4),
    st.booleans(),
    st.booleans(),
    st.sampled_from([np.int32, np.int64]),
)
def test_padded_ids_become_packed_ids(
    ids: list[list[int]], left: bool, raw: bool, dtype: type[np.integer[Any]]
) -> None:
    longest = max(map(len, ids))
    padded, mask = np.zeros((2, len(ids), longest), dtype)
    for row, sequence in enumerate(ids):
        place = slice(longest - len(sequence), None) if left else slice(len(sequence))
        padded[row, place], mask[row, place] = sequence, 1
    request = raw_request("m", input_ids=padded, attention_mask=mask)
    if not raw:
        del request.raw_input_contents[:]
        field = "int64_contents" if dtype == np.int64 else "int_contents"
        for tensor, values in zip(request.inputs, (padded, mask), strict=True):
            getattr(tensor.contents, field).extend(values.ravel().tolist())
    encode_request, wanted = read(request, LIMITS)
    assert wanted.raw is raw
    np.testing.assert_array_equal(mask if wanted.kept is None else wanted.kept, mask)
    check_packed([np.array(sequence) for sequence in ids], encode_request.tokens)


def test_names_outputs_and_texts_are_taken_over() -> None:
    request = raw_request("m", ("token_count", "hidden"), texts=["a", "bc"])
    request.id, request.model_version = "r-1", "2"
    encode_request, wanted = read(request, LIMITS)
    assert encode_request == pb.EncodeRequest(
        model="m",
        model_version="2",
        request_id="r-1",
        texts=pb.Texts(values=["a", "bc"]),
        output=pb.OutputOptions(hidden=True),
    )
    assert (wanted.request_id, wanted.outputs, wanted.raw) == ("r-1", ("token_count", "hidden"), True)


def with_second_texts(request: oip.ModelInferRequest, texts: list[str]) -> oip.ModelInferRequest:
    request.inputs.add(name="text_pair", datatype="BYTES", shape=[len(texts), 1])
    request.raw_input_contents.append(b"".join(len(each).to_bytes(4, "little") + each.encode() for each in texts))
    return request


def test_second_texts_become_pairs_and_a_head_gives_scores_by_default() -> None:
    request = with_second_texts(raw_request("m", texts=["a", "bc"]), ["d", "e"])
    request.parameters["pair_truncation"].string_param = "only_second"
    request.parameters["raw_scores"].bool_param = True
    encode_request, wanted = read(request, LIMITS, pb.Head(labels=["x"], per_token=True), scores=True)
    assert encode_request == pb.EncodeRequest(
        model="m",
        pairs=pb.Pairs(first=["a", "bc"], second=["d", "e"], pair_truncation=pb.PAIR_TRUNCATION_ONLY_SECOND),
        output=pb.OutputOptions(scores=True, raw_scores=True),
    )
    assert wanted.pads_scores
    with pytest.raises(InvalidInput) as refused:
        read(with_second_texts(raw_request("m", input_ids=np.ones((1, 2), np.int64)), ["a"]), LIMITS)
    assert refused.value.field == "text_pair"


def test_token_types_are_taken_over_unless_all_are_zero() -> None:
    types = np.array([[0, 1, 1], [1, 0, 9]])
    request, _ = read(raw_request("m", input_ids=IDS, token_type_ids=types % 9, attention_mask=MASK), LIMITS)
    assert request.tokens.types == bytes([0, 1, 1, 1])
    # Tokenizers give zeros for models without token types too.
    request, _ = read(raw_request("m", input_ids=IDS, token_type_ids=0 * IDS), LIMITS)
    assert not request.tokens.types


@pytest.mark.parametrize("parameter", [{"int64_param": 3}, {"string_param": "a"}, {"bool_param": True}])
def test_what_belongs_to_models_with_a_state_is_ignored(parameter: dict[str, Any]) -> None:
    for name in ("sequence_id", "sequence_start", "sequence_end"):
        request, _ = read(with_parameter(name, **parameter), LIMITS)
        assert request == read(raw_request("m", input_ids=IDS), LIMITS)[0]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_features_are_taken_over_without_padding(dtype: type[np.floating[Any]]) -> None:
    values = np.arange(12, dtype=dtype).reshape(2, 3, 2)
    request, _ = read(raw_request("m", features=values, attention_mask=MASK), LIMITS)
    features = request.features
    assert (features.width, list(features.lengths)) == (2, [3, 1])
    assert features.data == values[0].tobytes() + values[1, :1].tobytes()
    assert features.dtype == (pb.DATA_TYPE_FLOAT32 if dtype is np.float32 else pb.DATA_TYPE_FLOAT16)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (with_parameter("priority", uint64_param=0), {}),
        (with_parameter("priority", uint64_param=1), {"priority": pb.PRIORITY_INTERACTIVE}),
        (with_parameter("priority", int64_param=7), {"priority": pb.PRIORITY_BULK}),
        (with_parameter("timeout", int64_param=1500), {"timeout_s": 0.0015}),
        (with_parameter("truncation", string_param="left"), {"truncation": pb.TRUNCATION_LEFT}),
        (with_parameter("normalize", bool_param=False), {"output": pb.OutputOptions(normalize=False)}),
        (with_parameter("dimensions", int64_param=8), {"output": pb.OutputOptions(dimensions=8)}),
        (with_parameter("prompt", texts=True, string_param="query"), {"texts": pb.Texts(prompt="query")}),
        (with_parameter("prompt", string_param=""), {}),
        (with_parameter("triton_enable_empty_final_response", bool_param=True), {}),
    ],
)
def test_parameters_become_options(request_: oip.ModelInferRequest, expected: dict[str, Any]) -> None:
    without = oip.ModelInferRequest()
    without.CopyFrom(request_)
    without.ClearField("parameters")
    plain, _ = read(without, LIMITS)
    plain.MergeFrom(pb.EncodeRequest(**expected))
    assert read(request_, LIMITS)[0] == plain


@pytest.mark.parametrize(
    ("request_", "field", "words"),
    [
        (with_parameter("triton_other", bool_param=True), "parameters", "'triton_other'"),
        # http/api/test_open_inference.py has the wrong values of each parameter.
        (with_parameter("timeout", double_param=1.5), "parameters.timeout", "1.5"),
        (with_parameter("timeout"), "parameters.timeout", "no value"),
        (with_parameter("prompt", string_param="query"), "parameters.prompt", "tokens"),
        (with_parameter("pair_truncation", string_param="only_second"), "parameters.pair_truncation", "tokens"),
        (oip.ModelInferRequest(), None, "none of them"),
        (twice(raw_request("m", input_ids=IDS)), None, "same name"),
        (with_contents(raw_request("m", input_ids=IDS)), "input_ids", "raw_input_contents"),
        (infer_request(outputs=[{"name": "logits"}]), "outputs", "'logits'"),
        (raw_request("m", ("pooled", "hidden", "pooled"), input_ids=IDS), "outputs", "same name"),
        (infer_request(inputs=[{"name": "position_ids"}]), "inputs", "'position_ids'"),
        (raw_request("m", texts=["a"], token_type_ids=MASK), "token_type_ids", "leave it out"),
        (raw_request("m", features=np.ones((2, 3, 6), np.float32), token_type_ids=MASK), "token_type_ids", "input_ids"),
        (raw_request("m", input_ids=IDS, token_type_ids=MASK[:, :2]), "token_type_ids", "[2, 2]"),
        (raw_request("m", input_ids=IDS, token_type_ids=MASK - 1), "token_type_ids", "sequence 1 has -1"),
        (raw_request("m", input_ids=IDS, token_type_ids=MASK * 256), "token_type_ids", "sequence 0 has 256"),
        (raw_request("m", attention_mask=MASK), None, "none of them"),
        (raw_request("m", texts=["a"], input_ids=IDS), None, "'text' and 'input_ids'"),
        (raw_request("m", texts=["a"], attention_mask=MASK), "attention_mask", "leave it out"),
        (raw_request("m", input_ids=IDS, attention_mask=MASK[:, :2]), "attention_mask", "[2, 2]"),
        (raw_request("m", input_ids=IDS.astype(np.float32)), "input_ids", "'FP32'"),
        (raw_request("m", texts=["a"] * 5), None, "5 sequences"),
        (raw_request("m", input_ids=np.zeros((0, 3), np.int64)), None, "no sequences"),
        (infer_request(raw_input_contents=[b""]), "raw_input_contents", "1 inputs and 2"),
        (infer_request(inputs=[{"name": "input_ids", "datatype": "INT64", "shape": [1, 1]}]), None, "1 raw"),
        (with_shape("input_ids", "INT64", [3]), "input_ids", "[3]"),
        (with_shape("input_ids", "INT64", [1, -1]), "input_ids", "[1, -1]"),
        (with_shape("input_ids", "INT64", [1, 2**62]), "input_ids", str(2**62)),
        (with_shape("input_ids", "INT64", []), "input_ids", "[]"),
        (with_shape("features", "FP32", [1, 2]), "features", "[1, 2]"),
        (with_shape("text", "BYTES", [2, 2]), "text", "[2, 2]"),
        (with_shape("text", "BYTES", [2, 1, 1]), "text", "[2, 1, 1]"),
    ],
)
def test_a_wrong_request_is_refused(request_: oip.ModelInferRequest, field: str | None, words: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read(request_, LIMITS)
    assert words in str(refused.value)
    assert field in (None, refused.value.field)


@pytest.mark.parametrize(
    ("owner", "parameter", "error"),
    [
        ("inputs", "shared_memory_region", Unimplemented),
        ("outputs", "classification", Unimplemented),
        ("inputs", "other", InvalidInput),
    ],
)
def test_parameters_of_tensors_are_refused(owner: str, parameter: str, error: type[HeadwaiterError]) -> None:
    request = raw_request("m", ("pooled",), input_ids=IDS)
    getattr(request, owner)[0].parameters[parameter].int64_param = 1
    with pytest.raises(error):
        read(request, LIMITS)


def test_the_size_that_kserves_client_sends_beside_raw_values_changes_nothing() -> None:
    request = raw_request("m", ("pooled",), input_ids=IDS)
    expected = read(request, LIMITS)
    request.inputs[0].parameters["binary_data_size"].int64_param = len(request.raw_input_contents[0])
    assert read(request, LIMITS) == expected


NAMES = st.sampled_from(["text", "input_ids", "features", "attention_mask", "token_type_ids", "x"])
TYPES = st.sampled_from(["BYTES", "INT64", "INT32", "FP32", "FP16", "BOOL"])
AXES = st.lists(st.sampled_from([-1, 0, 1, 2, 3, 2**31 - 1, 2**62]), max_size=4)


@given(st.lists(st.tuples(NAMES, TYPES, AXES, st.integers(0, 5)), max_size=3), st.booleans())
def test_every_combination_of_inputs_is_read_or_refused(inputs: list[tuple[Any, ...]], raw: bool) -> None:
    request = oip.ModelInferRequest()
    for name, datatype, shape, size in inputs:
        tensor = request.inputs.add(name=name, datatype=datatype, shape=shape)
        if raw:
            request.raw_input_contents.append(bytes(4 * size))
        else:
            tensor.contents.int64_contents.extend([0] * size)
    with suppress(HeadwaiterError):
        read(request, LIMITS)
