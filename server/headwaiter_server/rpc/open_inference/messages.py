"""Read a ModelInferRequest: its values may be raw or typed. Pure functions."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from headwaiter_proto import open_inference_pb2 as oip
from headwaiter_proto.rules.errors import MAX_QUOTED_CHARACTERS, InvalidInput
from headwaiter_server.open_inference.infer_requests import InferQuestion, check_input
from headwaiter_server.open_inference.parameters import TENSOR_PARAMETERS
from headwaiter_server.open_inference.tensors import DTYPES, Input
from headwaiter_server.requests.fields import read_record
from headwaiter_server.requests.wire_format import field_tag

# The field of InferTensorContents that holds the values of a type. FP16 has none.
_TYPED_FIELDS = {"INT32": "int_contents", "INT64": "int64_contents", "FP32": "fp32_contents", "BYTES": "bytes_contents"}


def read_message(request: oip.ModelInferRequest) -> InferQuestion:
    """Return what a message asks.

    Raises:
        InvalidInput: a parameter has no value.
    """
    return InferQuestion(
        request.model_name,
        request.model_version,
        request.id,
        _inputs(request),
        [output.name for output in request.outputs],
        _values(request.parameters, "parameters"),
        bool(request.raw_input_contents),
        request.ByteSize(),
    )


def _inputs(request: oip.ModelInferRequest) -> Iterator[Input]:
    """Yield the inputs; check the outputs' parameters."""
    raw, tensors = request.raw_input_contents, request.inputs
    for index, output in enumerate(request.outputs):
        _check_parameters(f"outputs[{index}]", output.parameters)
    for index, tensor in enumerate(tensors):
        check_input(tensor.name, tensor.datatype, tensor.shape)
        _check_parameters(f"inputs[{index}]", tensor.parameters)
        if raw and tensor.HasField("contents"):
            raise InvalidInput(
                f"input {tensor.name!r} has contents, and the request has raw_input_contents: send all values in one "
                "of the two",
                field=tensor.name,
            )
    if raw and len(raw) != len(tensors):
        raise InvalidInput(
            f"the request has {len(tensors)} inputs and {len(raw)} raw_input_contents: send one for each input",
            field="raw_input_contents",
            limit=len(tensors),
            actual=len(raw),
        )
    for index, tensor in enumerate(tensors):
        yield Input(tensor.name, tensor.datatype, tensor.shape, raw[index] if raw else _typed_values(tensor))


def _check_parameters(owner: str, parameters: Mapping[str, oip.InferParameter]) -> None:
    if parameters:
        owner += ".parameters"
        read_record(TENSOR_PARAMETERS, _values(parameters, owner), owner)


def _typed_values(tensor: oip.ModelInferRequest.InferInputTensor) -> Any:
    """Return the values in the field of a tensor's type.

    Raises:
        InvalidInput: the type has no field, or another field has values too.
    """
    field, contents = _TYPED_FIELDS.get(tensor.datatype), tensor.contents
    if field is None:
        problem = f"input {tensor.name!r} is {tensor.datatype}, which has no typed contents: send raw_input_contents"
        raise InvalidInput(problem, field=tensor.name)
    for other, _ in contents.ListFields():
        if other.name != field:
            problem = f"input {tensor.name!r} is {tensor.datatype} and has values in {other.name}"
            raise InvalidInput(f"{problem}: send its values in {field}", field=tensor.name)
    values = getattr(contents, field)
    if tensor.datatype == "BYTES":
        return values
    dtype = DTYPES[tensor.datatype]
    if tensor.datatype != "FP32":
        return np.fromiter(values, dtype, len(values))
    # A packed field of floats has the bytes of the array. No other field has values, so this field comes first.
    size_bytes = len(values) * dtype.itemsize
    header = field_tag(oip.InferTensorContents.FP32_CONTENTS_FIELD_NUMBER, size_bytes)
    return np.frombuffer(contents.SerializeToString(), np.uint8)[len(header) :][:size_bytes].view(dtype)


def _values(parameters: Mapping[str, oip.InferParameter], owner: str) -> dict[str, Any]:
    """Return the values of parameters by name.

    Raises:
        InvalidInput: a parameter has no value.
    """
    values = {}
    for name, parameter in parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        if choice is None:
            path = f"{owner}.{name[:MAX_QUOTED_CHARACTERS]}"
            raise InvalidInput(f"{path} has no value: send one", field=path)
        values[name] = getattr(parameter, choice)
    return values
