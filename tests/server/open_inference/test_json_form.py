"""JSON with or without binary tensors becomes the message that gRPC has, and messages become JSON in Triton's form."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from headwaiter_proto import open_inference_pb2 as oip
from headwaiter_proto.rules.errors import InvalidInput
from headwaiter_server.open_inference.json_form import (
    InferQuestion,
    as_json,
    fill_message,
    json_length,
    read_infer_question,
    write_infer_reply,
)
from tests.support.e2e.open_inference_caller import raw_request

DEEP: Any = []
for _ in range(500):
    DEEP = [DEEP]
IDS = {"name": "input_ids", "shape": [1, 2], "datatype": "INT64"}


def read(fields: dict[str, Any], values: bytes = b"", **more: Any) -> InferQuestion:
    content = json.dumps(fields).encode()
    return read_infer_question(content + values, len(content), "m", more.get("version", ""))


NUMBERS = st.one_of(
    arrays_of.arrays(np.int64, (2, 3)), arrays_of.arrays(np.int32, (1, 4)), arrays_of.arrays(np.float32, (2, 1, 2))
)


@given(NUMBERS, st.booleans(), st.booleans())
def test_numbers_in_json_nested_or_flat_and_in_binary_are_the_same(values: Any, binary: bool, nested: bool) -> None:
    if not np.isfinite(values).all():
        return
    expected = raw_request("m", input_ids=values)
    tensor: dict[str, Any] = {
        "name": "input_ids",
        "shape": list(values.shape),
        "datatype": expected.inputs[0].datatype,
    }
    if binary:
        question = read({"inputs": [{**tensor, "parameters": {"binary_data_size": values.nbytes}}]}, values.tobytes())
        del question.request.inputs[0].parameters["binary_data_size"]
    else:
        question = read({"inputs": [{**tensor, "data": (values if nested else values.ravel()).tolist()}]})
    assert question.request == expected


def test_texts_names_and_parameters_are_taken_over() -> None:
    question = read(
        {
            "id": "r-1",
            "model_name": "m",
            "model_version": "3",
            "parameters": {"priority": 2, "normalize": False, "truncation": "left", "binary_data_output": True},
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
    assert question.request == expected
    assert (question.binary, question.all_binary) == ({"pooled": False}, True)


@pytest.mark.parametrize(
    ("fields", "values", "field", "words"),
    [
        ({"input": []}, b"", "input", "unknown"),
        ({"inputs": {}}, b"", "inputs", "a list"),
        ({"inputs": [1]}, b"", "inputs", "no object"),
        ({"inputs": [{**IDS, "dtype": "INT64"}]}, b"", "dtype", "unknown"),
        ({"inputs": [IDS]}, b"", "input_ids", "no list data"),
        ({"inputs": [{**IDS, "data": [1, 1.5]}]}, b"", "input_ids", "whole numbers"),
        ({"inputs": [{**IDS, "data": [1, True]}]}, b"", "input_ids", "whole numbers"),
        ({"inputs": [{**IDS, "data": [1, 2**63]}]}, b"", "input_ids", "cannot hold"),
        ({"inputs": [{**IDS, "data": ["a"], "datatype": "FP32"}]}, b"", "input_ids", "no numbers"),
        ({"inputs": [{**IDS, "data": [1], "datatype": "BYTES"}]}, b"", "input_ids", "no texts"),
        ({"inputs": [{**IDS, "shape": [1, -1], "data": [1]}]}, b"", "input_ids", "shape"),
        ({"inputs": [{**IDS, "shape": [1, True], "data": [1]}]}, b"", "input_ids", "shape"),
        ({"inputs": [{**IDS, "parameters": {"binary_data_size": 9}}]}, bytes(8), "input_ids", "8 bytes follow"),
        ({"inputs": [{**IDS, "parameters": {"binary_data_size": -1}}]}, bytes(8), "input_ids", "8 bytes follow"),
        ({"inputs": [{**IDS, "parameters": {"binary_data_size": "8"}}]}, bytes(8), "input_ids", "8 bytes follow"),
        ({"inputs": [{**IDS, "data": [1], "parameters": {"binary_data_size": 8}}]}, bytes(8), "input_ids", "data too"),
        ({"inputs": [{**IDS, "parameters": {"binary_data_size": 8}}]}, bytes(9), "inputs", "1 bytes after"),
        ({"parameters": {"a": [1]}}, b"", "parameters", "'a'"),
        ({"parameters": {"a": 2**63}}, b"", "parameters", "64 bits"),
        ({"parameters": {"binary_data_output": 1}}, b"", "binary_data_output", "true or false"),
        ({"outputs": [{"name": 1}]}, b"", "name", "a text"),
        ({"id": 7}, b"", "id", "a text"),
        ({"inputs": [{**IDS, "data": [[1], [2]]}]}, b"", "input_ids", "nested"),
        ({"inputs": [{**IDS, "data": [[1, 2, 3]]}]}, b"", "input_ids", "nested"),
        ({"inputs": [{**IDS, "data": [[1, [2]]]}]}, b"", "input_ids", "nested"),
        ({"inputs": [{**IDS, "data": [[1], 2]}]}, b"", "input_ids", "nested"),
        ({"inputs": [{**IDS, "data": [DEEP, *[1] * 60_000]}]}, b"", "input_ids", "nested"),
        ({"inputs": [{**IDS, "shape": [1] * 1000, "data": [1]}]}, b"", "input_ids", "shape"),
        ({"model_name": "other"}, b"", "model_name", "path"),
        ({"model_version": "1"}, b"", "model_version", "path"),
    ],
)
def test_a_wrong_body_is_refused_with_the_name_of_the_field(
    fields: dict[str, Any], values: bytes, field: str, words: str
) -> None:
    with pytest.raises(InvalidInput, match=words) as refused:
        read(fields, values)
    assert refused.value.field == field


@pytest.mark.parametrize("header", ["-1", "11", "1.5", "x", "", "9" * 5000, "١"])
def test_a_wrong_length_of_the_json_is_refused(header: str) -> None:
    with pytest.raises(InvalidInput):
        json_length(header, 10)


@pytest.mark.parametrize(("header", "length"), [(None, 10), ("0", 0), ("10", 10), ("007", 7)])
def test_the_length_of_the_json_is_that_of_the_header_or_of_the_body(header: str | None, length: int) -> None:
    assert json_length(header, 10) == length


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
    body, length = write_infer_reply(InferQuestion(oip.ModelInferRequest(), binary, all_binary), reply)
    assert (length is None) is (follows == [])
    content, rest = json.loads(body[:length]), body[length:] if length else b""
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
    body, _ = write_infer_reply(InferQuestion(oip.ModelInferRequest(), {}, False), reply)
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


def test_a_message_is_filled_from_json() -> None:
    message = oip.RepositoryIndexRequest()
    fill_message(message, {"ready": True})
    assert message.ready
    with pytest.raises(InvalidInput, match="cannot have"):
        fill_message(oip.RepositoryModelLoadRequest(), {"parameters": {"x": 1.5}})
    for values, field in (({"ready": 1}, "ready"), ({"x": 1}, "x"), ({"repository_name": 1}, "repository_name")):
        with pytest.raises(InvalidInput) as refused:
            fill_message(message, values)
        assert refused.value.field == field
