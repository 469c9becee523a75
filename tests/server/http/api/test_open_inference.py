"""JSON with or without binary tensors means what gRPC's message means, and messages become JSON in Triton's form."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from jsonschema import Draft202012Validator
from starlette.requests import Request

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto import open_inference_pb2 as oip
from headwaiter_proto.rules.errors import HeadwaiterError, InvalidInput, Unimplemented
from headwaiter_proto.rules.limits import RequestLimits
from headwaiter_server.http.api.open_inference import INDEX, INFER, LOAD, Asked, as_json, json_bytes
from headwaiter_server.http.endpoint import Written
from headwaiter_server.open_inference.infer_requests import WantedReply, read_infer_request
from headwaiter_server.requests.fields import object_schema
from headwaiter_server.rpc.open_inference.messages import read_message
from tests.support.e2e.open_inference_caller import raw_request

LIMITS = RequestLimits(sequences=4, tokens=100, message_bytes=10_000, attend_bytes=0)
DEEP: Any = []
for _ in range(500):
    DEEP = [DEEP]
IDS = {"name": "input_ids", "shape": [1, 2], "datatype": "INT64"}
GIVEN = {**IDS, "data": [1, 2]}
TEXT = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]}


def http_request(length: str | None = None, **path: str) -> Request:
    headers = [] if length is None else [(b"inference-header-content-length", length.encode())]
    return Request({"type": "http", "headers": headers, "path_params": path})


def read(fields: dict[str, Any], values: bytes = b"", **path: str) -> Asked:
    content = json.dumps(fields).encode()
    asked = INFER.read(http_request(str(len(content)), model="m", **path), content + values)
    assert isinstance(asked, Asked)
    return asked


def meaning(asked: Asked) -> tuple[pb.EncodeRequest, WantedReply]:
    return read_infer_request(asked.question, LIMITS)


FINITE = {"allow_nan": False, "allow_infinity": False}
NUMBERS = st.one_of(
    *(arrays_of.arrays(dtype, (2, 3)) for dtype in (np.int64, np.int32)),
    *(arrays_of.arrays(dtype, (2, 1, 2), elements=FINITE) for dtype in (np.float32, np.float16)),
)


@given(NUMBERS, st.booleans(), st.booleans())
def test_numbers_in_json_nested_or_flat_and_in_binary_mean_what_grpc_means(
    values: Any, binary: bool, nested: bool
) -> None:
    name = "input_ids" if values.ndim == 2 else "features"
    expected = raw_request("m", **{name: values})
    tensor: dict[str, Any] = {"name": name, "shape": list(values.shape), "datatype": expected.inputs[0].datatype}
    if binary:
        asked = read({"inputs": [{**tensor, "parameters": {"binary_data_size": values.nbytes}}]}, values.tobytes())
    else:
        asked = read({"inputs": [{**tensor, "data": (values if nested else values.ravel()).tolist()}]})
    assert meaning(asked) == read_infer_request(read_message(expected), LIMITS)


def test_texts_names_and_parameters_are_taken_over() -> None:
    asked = read(
        {
            "id": "r-1",
            "model_name": "m",
            "model_version": "3",
            "parameters": {
                "priority": 2,
                "normalize": False,
                "truncation": "left",
                "prompt": None,
                "binary_data_output": True,
            },
            "inputs": [{"name": "text", "shape": [2, 1], "datatype": "BYTES", "data": [["a"], ["grüße"]]}],
            "outputs": [{"name": "pooled", "parameters": {"binary_data": False}}, {"name": "token_count"}],
        },
        version="3",
    )
    expected = raw_request("m", ("pooled", "token_count"), texts=["a", "grüße"])
    expected.id, expected.model_version = "r-1", "3"
    expected.parameters["priority"].int64_param = 2
    expected.parameters["normalize"].bool_param = False
    expected.parameters["truncation"].string_param = "left"
    assert meaning(asked) == read_infer_request(read_message(expected), LIMITS)
    assert (asked.question.model, asked.question.version) == ("m", "3")
    assert (asked.binary, asked.all_binary) == ({"pooled": False}, True)


@pytest.mark.parametrize(
    ("fields", "values", "field", "words"),
    [
        ({"inputs": [], "input": []}, b"", "input", "unknown"),
        ({}, b"", "inputs", "absent"),
        ({"inputs": {}}, b"", "inputs", "a list"),
        ({"inputs": [IDS]}, b"", "input_ids", "no data"),
        ({"inputs": [{**IDS, "data": [1, 1.5]}]}, b"", "input_ids", "whole numbers"),
        ({"inputs": [{**IDS, "data": [1, True]}]}, b"", "input_ids", "whole numbers"),
        ({"inputs": [{**IDS, "data": [1, 2**63]}]}, b"", "input_ids", "cannot hold"),
        ({"inputs": [{**IDS, "data": [1, 2**31], "datatype": "INT32"}]}, b"", "input_ids", "cannot hold"),
        (
            {"inputs": [{"name": "features", "shape": [1, 1, 1], "data": ["a"], "datatype": "FP32"}]},
            b"",
            "features",
            "no numbers",
        ),
        ({"inputs": [{**TEXT, "data": [1]}]}, b"", "text", "no texts"),
        ({"inputs": [{**IDS, "parameters": {"binary_data_size": 9}}]}, bytes(8), "input_ids", "8 bytes follow"),
        (
            {"inputs": [{**IDS, "parameters": {"binary_data_size": -1}}]},
            bytes(8),
            "inputs[0].parameters.binary_data_size",
            "-1",
        ),
        ({"inputs": [{**GIVEN, "parameters": {"binary_data_size": 8}}]}, bytes(8), "input_ids", "data too"),
        ({"inputs": [{**IDS, "parameters": {"binary_data_size": 8}}]}, bytes(9), "inputs", "1 bytes after"),
        ({"inputs": [GIVEN], "parameters": 1}, b"", "parameters", "an object"),
        ({"inputs": [GIVEN], "parameters": {"a": [1]}}, b"", "parameters", "'a'"),
        ({"inputs": [GIVEN], "parameters": {"timeout": 2**64}}, b"", "parameters.timeout", "1.8"),
        ({"inputs": [GIVEN], "outputs": [{"name": 1}]}, b"", "outputs[0].name", "a text"),
        ({"inputs": [GIVEN], "id": 7}, b"", "id", "a text"),
        ({"inputs": [{**IDS, "data": [[1], [2]]}]}, b"", "input_ids", "nested"),
        ({"inputs": [{**IDS, "data": [[1, 2, 3]]}]}, b"", "input_ids", "nested"),
        ({"inputs": [{**IDS, "data": [[1, [2]]]}]}, b"", "input_ids", "nested"),
        ({"inputs": [{**IDS, "data": [DEEP, *[1] * 60_000]}]}, b"", "input_ids", "nested"),
        ({"inputs": [GIVEN], "model_name": "other"}, b"", "model_name", "path"),
        ({"inputs": [GIVEN], "model_version": "1"}, b"", "model_version", "path"),
    ],
)
def test_a_wrong_body_is_refused_with_the_name_of_the_field(
    fields: dict[str, Any], values: bytes, field: str, words: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        meaning(read(fields, values))
    assert words in str(refused.value)
    assert refused.value.field == field


def test_classification_which_the_server_lacks_is_named() -> None:
    with pytest.raises(Unimplemented) as refused:
        read({"inputs": [GIVEN], "outputs": [{"name": "pooled", "parameters": {"classification": 2}}]})
    assert refused.value.field == "outputs[0].parameters.classification"


PARAMETERS: dict[str, list[Any]] = {
    "priority": [0, 1, 7, 2**64 - 1, -1, 1.5, "high", True],
    "timeout": [0, 10, -1, "1"],
    "truncation": ["left", "middle", 1],
    "raw_scores": [1],
    "normalize": [True, 1],
    "dimensions": [0, 3, -1, 2**31],
    "prompt": ["", "query", 1],
    "pair_truncation": ["both"],
    "sequence_id": [1, "a"],
    "triton_enable_empty_final_response": [True, 1],
    "binary_data_output": [False, 0],
    "unknown": [None, 1],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in PARAMETERS for value in PARAMETERS[name]])
def test_the_description_accepts_the_parameters_that_are_read_and_others_are_named(name: str, value: Any) -> None:
    body = {"inputs": [TEXT], "parameters": {name: value}}
    field = None
    try:
        meaning(read(body))
    except InvalidInput as error:
        field = error.field
    assert field in (None, "parameters" if name == "unknown" else f"parameters.{name}")
    assert INFER.fields is not None
    assert Draft202012Validator(object_schema(INFER.fields)).is_valid(body) == (field is None)


@pytest.mark.parametrize(
    ("tensor", "field"),
    [
        (GIVEN, None),
        ({**GIVEN, "data": [[1, 2]]}, None),
        ({**GIVEN, "parameters": None}, None),
        ({**GIVEN, "parameters": {"x": None}}, None),
        ({**GIVEN, "parameters": {"x": 1}}, "inputs[0].parameters"),
        ({**GIVEN, "parameters": {"shared_memory_region": "r"}}, "inputs[0].parameters.shared_memory_region"),
        ({**GIVEN, "shape": [1, -2]}, "inputs[0].shape"),
        ({**GIVEN, "shape": 2}, "inputs[0].shape"),
        ({**GIVEN, "datatype": 1}, "inputs[0].datatype"),
        ({**GIVEN, "dtype": "INT64"}, "inputs[0]"),
        ({**GIVEN, "data": 1}, "inputs[0].data"),
        ({"name": "input_ids"}, "inputs[0].shape"),
        (1, "inputs[0]"),
    ],
)
def test_the_description_accepts_the_tensors_that_are_read_and_others_are_named(tensor: Any, field: str | None) -> None:
    body = {"inputs": [tensor]}
    assert INFER.fields is not None
    assert Draft202012Validator(object_schema(INFER.fields)).is_valid(body) == (field is None)
    if field is None:
        read(body)
    else:
        with pytest.raises(HeadwaiterError) as refused:
            read(body)
        assert refused.value.field == field


@pytest.mark.parametrize("header", ["-1", "11", "1.5", "x", "", "9" * 5000, "١"])
def test_a_wrong_length_of_the_json_is_refused(header: str) -> None:
    request = http_request()
    request.scope["headers"] = [(b"inference-header-content-length", header.encode("latin-1", "replace"))]
    with pytest.raises(InvalidInput):
        json_bytes(request, 10)


@pytest.mark.parametrize(("header", "length"), [(None, 10), ("0", 0), ("10", 10), ("007", 7)])
def test_the_length_of_the_json_is_that_of_the_header_or_of_the_body(header: str | None, length: int) -> None:
    assert json_bytes(http_request(header), 10) == length


def write(reply: oip.ModelInferResponse, binary: dict[str, bool], all_binary: bool) -> tuple[bytes, int]:
    """Return the body of a reply, and the number of bytes of its JSON."""
    written = INFER.write(Asked(read({"inputs": [GIVEN]}).question, binary, all_binary), reply)
    if isinstance(written, Written):
        assert written.media_type == "application/octet-stream"
        return written.body, int(written.headers["inference-header-content-length"])
    return written, len(written)


@pytest.mark.parametrize(
    ("binary", "all_binary", "follows"),
    [({}, False, []), ({}, True, ["pooled", "token_count"]), ({"pooled": True}, False, ["pooled"])],
)
def test_values_are_numbers_or_follow_the_json(binary: dict[str, bool], all_binary: bool, follows: list[str]) -> None:
    pooled, counts = np.array([[0.1, -2e-8], [3, 4]], "<f4"), np.array([1, 2], "<i4")
    reply = oip.ModelInferResponse(model_name="m", model_version="1", id="r-1")
    for name, datatype, array in (("pooled", "FP32", pooled), ("token_count", "INT32", counts)):
        reply.outputs.add(name=name, datatype=datatype, shape=array.shape)
        reply.raw_output_contents.append(array.tobytes())
    body, length = write(reply, binary, all_binary)
    assert (length == len(body)) is (follows == [])
    content, rest = json.loads(body[:length]), body[length:]
    assert (content["id"], content["model_name"], content["model_version"]) == ("r-1", "m", "1")
    for output, array in zip(content["outputs"], (pooled, counts), strict=True):
        assert output["shape"] == list(array.shape)
        if output["name"] in follows:
            size = output["parameters"]["binary_data_size"]
            found, rest = np.frombuffer(rest[:size], array.dtype), rest[size:]
        else:
            found = np.array(output["data"], array.dtype)
        assert np.array_equal(found, array.ravel())
    assert rest == b""


def test_a_long_output_is_written_in_parts() -> None:
    values = np.arange(10_000, dtype="<f4")
    reply = oip.ModelInferResponse(raw_output_contents=[values.tobytes()])
    reply.outputs.add(name="pooled", datatype="FP32", shape=[10_000, 1])
    body, _ = write(reply, {}, False)
    assert json.loads(body)["outputs"][0]["data"] == values.tolist()


def test_messages_have_all_fields_names_of_enumerations_and_numbers() -> None:
    config = oip.ModelConfig(name="m", instance_group=[oip.ModelInstanceGroup(kind=oip.ModelInstanceGroup.KIND_CPU)])
    config.parameters["a"].string_value = "b"
    written = as_json(config)
    assert written["instance_group"][0]["kind"] == "KIND_CPU"
    assert written["parameters"] == {"a": {"string_value": "b"}}
    assert (written["max_batch_size"], written["platform"]) == (0, "")
    assert "dynamic_batching" not in written
    assert as_json(oip.StatisticDuration(count=2**40)) == {"count": 2**40, "ns": 0}


def test_a_message_is_filled_from_json_and_from_the_path() -> None:
    assert INDEX.read(http_request(), b"") == oip.RepositoryIndexRequest()
    assert INDEX.read(http_request(), b'{"ready": true}') == oip.RepositoryIndexRequest(ready=True)
    load = LOAD.read(http_request(model="m"), b'{"model_name": "m", "parameters": {"config": "{}"}}')
    assert (load.model_name, list(load.parameters)) == ("m", ["config"])
    with pytest.raises(InvalidInput, match="path"):
        LOAD.read(http_request(model="m"), b'{"model_name": "other"}')
    for values, field in (({"ready": 1}, "ready"), ({"x": 1}, "x"), ({"repository_name": 1}, "repository_name")):
        with pytest.raises(InvalidInput) as refused:
            INDEX.read(http_request(), json.dumps(values).encode())
        assert refused.value.field == field
