"""The Open Inference Protocol in JSON, with the extension for binary tensors. Pure functions."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from headwaiter_proto import open_inference_pb2 as oip
from headwaiter_proto.rules.errors import MAX_QUOTED_CHARACTERS, InvalidInput
from headwaiter_proto.rules.unicode import check_json_texts
from headwaiter_server.open_inference.tensors import DTYPES, joined_bytes

# The header of a body whose tensors follow the JSON: the number of bytes of the JSON.
JSON_LENGTH = "inference-header-content-length"
_BINARY_SIZE, _BINARY, _ALL_BINARY = "binary_data_size", "binary_data", "binary_data_output"
_REQUEST_FIELDS = ("id", "parameters", "inputs", "outputs", "model_name", "model_version")
_INPUT_FIELDS = ("name", "shape", "datatype", "parameters", "data")
_OUTPUT_FIELDS = ("name", "parameters")
# Features have three.
_MOST_AXES = 3
_TYPES = {dict: "an object", list: "a list", str: "a text", int: "a whole number"}


@dataclass(frozen=True, slots=True)
class InferQuestion:
    """A request for inference.

    Attributes:
        request: the request as gRPC has it, with raw values.
        binary: whether the values of each output follow the JSON of the reply, by the name of the output.
        all_binary: whether those of outputs that `binary` does not name do.
    """

    request: oip.ModelInferRequest
    binary: Mapping[str, bool]
    all_binary: bool


def json_length(header: str | None, body_bytes: int) -> int:
    """Return the number of bytes of JSON in a body, given its header `JSON_LENGTH`.

    Raises:
        InvalidInput: the header is not a number of bytes of the body.
    """
    if header is None:
        return body_bytes
    length = int(header) if header.isascii() and header.isdecimal() and len(header) < 20 else -1
    if not 0 <= length <= body_bytes:
        shown = header[:MAX_QUOTED_CHARACTERS]
        raise InvalidInput(f"the header {JSON_LENGTH} is {shown!r}, and the body has {body_bytes} bytes: correct it")
    return length


def read_infer_question(body: bytes, length: int, name: str, version: str) -> InferQuestion:
    """Read the body of a request for inference.

    Args:
        body: JSON, and the values of the inputs with the parameter binary_data_size, in the order of the inputs.
        length: number of bytes of the JSON.
        name: name of the model.
        version: version of the model; may be empty.

    Raises:
        InvalidInput: the body is wrong.
    """
    values = read_json_object(body[:length])
    _check_names(values, _REQUEST_FIELDS, "the request")
    for field, in_path in (("model_name", name), ("model_version", version)):
        # KServe's client repeats the name of the path.
        if _typed(values, field, str, "") not in ("", in_path):
            raise InvalidInput(f"{field} is not that of the path: leave it out", field=field)
    request = oip.ModelInferRequest(model_name=name, model_version=version, id=_typed(values, "id", str, ""))
    parameters = _typed(values, "parameters", dict, {})
    all_binary = _flag(parameters, _ALL_BINARY)
    _fill_parameters(request.parameters, {key: value for key, value in parameters.items() if key != _ALL_BINARY})
    end = length
    for given in _typed(values, "inputs", list, []):
        end = _add_input(request, given, body, end)
    if end != len(body):
        raise InvalidInput(
            f"the body has {len(body) - end} bytes after the values of the last input: set {_BINARY_SIZE} in the "
            "parameters of each input whose values follow the JSON",
            field="inputs",
        )
    binary = {}
    for given in _typed(values, "outputs", list, []):
        output = _object(given, "outputs", _OUTPUT_FIELDS)
        parameters = _typed(output, "parameters", dict, {})
        added = request.outputs.add(name=_typed(output, "name", str, ""))
        if _BINARY in parameters:
            binary[added.name] = _flag(parameters, _BINARY)
        _fill_parameters(added.parameters, {key: value for key, value in parameters.items() if key != _BINARY})
    return InferQuestion(request, binary, all_binary)


def write_infer_reply(question: InferQuestion, reply: oip.ModelInferResponse) -> tuple[bytes, int | None]:
    """Write the reply to a request for inference.

    Returns:
        The body; and the number of bytes of its JSON if values follow the JSON, else None.
    """
    outputs, values = [], []
    for output, raw in zip(reply.outputs, reply.raw_output_contents, strict=True):
        described: dict[str, Any] = {
            "name": output.name,
            "datatype": output.datatype,
            "shape": list(output.shape),
        }
        if question.binary.get(output.name, question.all_binary):
            described["parameters"] = {_BINARY_SIZE: len(raw)}
            values.append(raw)
        else:
            described["data"] = _json_numbers(np.frombuffer(raw, DTYPES[output.datatype]))
        outputs.append(described)
    named = {"id": reply.id} if reply.id else {}
    model = {"model_name": reply.model_name, "model_version": reply.model_version}
    content = orjson.dumps({**named, **model, "outputs": outputs})
    return (b"".join([content, *values]), len(content)) if values else (content, None)


def read_json_object(raw: bytes) -> dict[str, Any]:
    """Return the JSON object in bytes; no bytes are an empty object.

    Raises:
        InvalidInput: the bytes are not a JSON object.
    """
    try:
        values = orjson.loads(raw or b"{}")
    except orjson.JSONDecodeError as error:
        check_json_texts(raw)
        raise InvalidInput(f"the body is not JSON ({error}): send a JSON object") from None
    if not isinstance(values, dict):
        raise InvalidInput("the body is not a JSON object: send one")
    return values


def fill_message(message: Message, values: Mapping[str, Any]) -> None:
    """Write the fields of a JSON object into a message of texts, booleans and parameters.

    Raises:
        InvalidInput: the object has a field that the message lacks, or a field has another type.
    """
    fields = message.DESCRIPTOR.fields_by_name
    _check_names(values, tuple(fields), "the request")
    for name, value in values.items():
        if name == "parameters":
            _fill_parameters(message.parameters, _typed(values, name, dict, {}))  # type: ignore[attr-defined]
        else:
            wanted = bool if fields[name].type == FieldDescriptor.TYPE_BOOL else str
            setattr(message, name, _flag(values, name) if wanted is bool else _typed(values, name, str, value))


def as_json(message: Message) -> dict[str, Any]:
    """Return a message as JSON in the form of Triton: all fields, enumerations by name, whole numbers as numbers."""
    values: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type and field.message_type.GetOptions().map_entry:
            values[field.name] = {key: _json_value(field, each) for key, each in sorted(value.items())}
        elif field.is_repeated:
            values[field.name] = [_json_value(field, each) for each in value]
        elif not field.has_presence or message.HasField(field.name):
            values[field.name] = _json_value(field, value)
    return values


def _json_value(field: Any, value: Any) -> Any:
    if isinstance(value, Message):
        return as_json(value)
    return field.enum_type.values_by_number[value].name if field.enum_type else value


def _add_input(request: oip.ModelInferRequest, given: Any, body: bytes, end: int) -> int:
    """Add an input to a request; return the end of its values in the body, given that of the input before."""
    values = _object(given, "inputs", _INPUT_FIELDS)
    name, datatype = _typed(values, "name", str, ""), _typed(values, "datatype", str, "")
    shape = _typed(values, "shape", list, [])
    if len(shape) > _MOST_AXES or not all(type(axis) is int and 0 <= axis < 2**31 for axis in shape):
        raise InvalidInput(f"the shape of input {_quoted(name)} is not a list of whole numbers: correct it", field=name)
    tensor = request.inputs.add(name=name, datatype=datatype, shape=shape)
    parameters = _typed(values, "parameters", dict, {})
    size_bytes = parameters.get(_BINARY_SIZE)
    _fill_parameters(tensor.parameters, parameters)
    if size_bytes is None:
        if "shared_memory_region" not in parameters:
            request.raw_input_contents.append(_raw(name, datatype, shape, values.get("data")))
        return end
    if type(size_bytes) is not int or not 0 <= size_bytes <= len(body) - end or "data" in values:
        problem = f"input {_quoted(name)} has {_BINARY_SIZE} {size_bytes!r:.40}"
        problem += ", and data too" if "data" in values else f", and {len(body) - end} bytes follow"
        raise InvalidInput(f"{problem}: correct the size or the header {JSON_LENGTH}", field=name)
    request.raw_input_contents.append(body[end : end + size_bytes])
    return end + size_bytes


def _raw(name: str, datatype: str, shape: list[int], data: Any) -> bytes:
    """Return the raw values of an input whose values are in JSON, nested as the shape or flat."""
    if not isinstance(data, list):
        raise InvalidInput(f"input {_quoted(name)} has no list data: send its values", field=name)
    if datatype == "BYTES":
        texts = _flat(name, data, shape)
        if not all(type(text) is str for text in texts):
            raise InvalidInput(f"input {_quoted(name)} is BYTES and has values that are no texts", field=name)
        return joined_bytes([text.encode() for text in texts])
    if datatype not in DTYPES:
        return b""  # The name of the type is refused later.
    dtype = DTYPES[datatype]
    numbers = _flat(name, data, shape)
    kinds = (int,) if dtype.kind == "i" else (int, float)
    if not all(type(number) in kinds for number in numbers):
        wanted = "whole numbers" if dtype.kind == "i" else "numbers"
        raise InvalidInput(f"input {_quoted(name)} is {datatype} and has values that are no {wanted}", field=name)
    if dtype.kind == "i" and numbers:
        limits = np.iinfo(dtype)
        if min(numbers) < limits.min or max(numbers) > limits.max:
            raise InvalidInput(f"input {_quoted(name)} has a number that {datatype} cannot hold", field=name)
    with np.errstate(over="ignore"):
        return np.array(numbers, dtype).tobytes()


def _flat(name: str, data: list[Any], shape: list[int]) -> list[Any]:
    """Return the values of a list that is flat or nested as its shape, in order.

    Raises:
        InvalidInput: the list is nested in another way.
    """
    if not any(isinstance(each, list) for each in data):
        return data
    values, sizes = [data], [*shape]
    while sizes and all(isinstance(each, list) and len(each) == sizes[0] for each in values):
        values = [value for each in values for value in each]
        sizes.pop(0)
    if sizes or any(isinstance(each, list) for each in values):
        problem = f"the data of input {_quoted(name)} is nested otherwise than its shape {shape}"
        raise InvalidInput(f"{problem}: send a flat list, or lists of these lengths", field=name)
    return values


def _json_numbers(values: np.ndarray[Any, Any]) -> Any:
    """Return numbers as a JSON list, written in parts: orjson holds Python's global lock while it writes a part."""
    parts = [
        orjson.dumps(part, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
        for part in np.array_split(values, max(1, math.ceil(len(values) / 4096)))
    ]
    return orjson.Fragment(b"[" + b",".join(part for part in parts if part) + b"]")


def _fill_parameters(parameters: Any, values: Mapping[str, Any]) -> None:
    fields = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}
    for name, value in values.items():
        if type(value) is int and not -(2**63) <= value < 2**63:
            raise InvalidInput(f"parameter {_quoted(name)} has more than 64 bits: send less", field="parameters")
        field = fields.get(type(value), "")
        if not hasattr(parameters[name], field):
            problem = f"parameter {_quoted(name)} has a value that parameters of this method cannot have"
            raise InvalidInput(f"{problem}: leave it out", field="parameters")
        setattr(parameters[name], field, value)


def _object(value: Any, owner: str, known: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInput(f"{owner} has a value that is no object: send objects", field=owner)
    _check_names(value, known, f"a value of {owner}")
    return value


def _check_names(values: Mapping[str, Any], known: tuple[str, ...], owner: str) -> None:
    for name in sorted(values.keys() - set(known)):
        problem = f"{owner} has the unknown field {_quoted(name)}"
        raise InvalidInput(f"{problem}: leave it out, or use one of {', '.join(known)}", field=name[:100])


def _typed(values: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    value = default if values.get(name) is None else values[name]
    if type(value) is not kind:
        raise InvalidInput(f"{name} is not {_TYPES[kind]}: send {_TYPES[kind]}", field=name)
    return value


def _flag(values: Mapping[str, Any], name: str) -> bool:
    value = False if values.get(name) is None else values[name]
    if type(value) is not bool:
        raise InvalidInput(f"{name} is neither true nor false: send true or false", field=name)
    return value


def _quoted(name: str) -> str:
    return repr(name[:MAX_QUOTED_CHARACTERS])
