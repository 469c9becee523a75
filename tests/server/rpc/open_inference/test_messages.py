"""A ModelInferRequest means the same with raw and with typed values."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from headwaiter_proto import open_inference_pb2 as oip
from headwaiter_proto.rules.errors import InvalidInput
from headwaiter_server.open_inference.tensors import read_array, read_texts
from headwaiter_server.rpc.open_inference.messages import read_message
from tests.support.e2e.open_inference_caller import raw_request

FIELDS = {"INT32": "int_contents", "INT64": "int64_contents", "FP32": "fp32_contents"}


def message(name: str, datatype: str, shape: Any, **contents: Any) -> oip.ModelInferRequest:
    request = oip.ModelInferRequest()
    request.inputs.add(name=name, datatype=datatype, shape=shape, contents=oip.InferTensorContents(**contents))
    return request


@given(
    st.one_of(
        arrays.arrays(np.int32, arrays.array_shapes(min_dims=2, max_dims=2, min_side=0)),
        arrays.arrays(np.int64, arrays.array_shapes(min_dims=2, max_dims=2, min_side=0)),
        arrays.arrays(np.float32, arrays.array_shapes(min_dims=3, max_dims=3, min_side=0)),
    )
)
def test_typed_and_raw_numbers_are_read_alike(values: Any) -> None:
    name = "features" if values.ndim == 3 else "input_ids"
    raw = raw_request("m", **{name: values})
    datatype = raw.inputs[0].datatype
    typed = message(name, datatype, values.shape, **{FIELDS[datatype]: values.ravel().tolist()})
    for request in (raw, typed):
        (tensor,) = read_message(request).inputs
        np.testing.assert_array_equal(read_array(tensor), values)


@given(st.lists(st.text(max_size=5), max_size=5))
def test_typed_and_raw_texts_are_read_alike(texts: list[str]) -> None:
    typed = message("text", "BYTES", [len(texts)], bytes_contents=[text.encode() for text in texts])
    for request in (raw_request("m", texts=texts), typed):
        (tensor,) = read_message(request).inputs
        assert read_texts(tensor) == texts


@pytest.mark.parametrize(
    ("request_", "field", "words"),
    [
        (
            message("input_ids", "INT64", [1, 2], int_contents=[1, 2]),
            "input_ids",
            "int_contents: send its values in int64",
        ),
        (
            message("features", "FP32", [1, 1, 1], fp32_contents=[1], bytes_contents=[b"a"]),
            "features",
            "bytes_contents",
        ),
        (message("features", "FP16", [1, 1, 1], fp32_contents=[1]), "features", "no typed contents"),
    ],
)
def test_values_in_a_wrong_field_are_refused(request_: oip.ModelInferRequest, field: str, words: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        list(read_message(request_).inputs)
    assert refused.value.field == field
    assert words in str(refused.value)
