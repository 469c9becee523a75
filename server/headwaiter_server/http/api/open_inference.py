"""The paths of the Open Inference Protocol, whose values are in JSON or follow the JSON."""

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import orjson
from google.protobuf.message import Message
from numpy.typing import NDArray
from starlette.requests import Request

from headwaiter_proto import open_inference_pb2 as oip
from headwaiter_proto.rules.errors import MAX_QUOTED_CHARACTERS, InvalidInput
from headwaiter_server.http.api.errors import OPEN_INFERENCE_ERRORS
from headwaiter_server.http.api.operations import COUNT, STRING, Rules, array, read_object, record
from headwaiter_server.http.endpoint import Written
from headwaiter_server.open_inference.infer_requests import InferQuestion, check_input
from headwaiter_server.open_inference.methods import UNARY_METHODS, OpenInferenceMethods
from headwaiter_server.open_inference.parameters import PARAMETERS, TENSOR_PARAMETERS
from headwaiter_server.open_inference.tensors import DTYPES, Input
from headwaiter_server.requests.call import Call
from headwaiter_server.requests.fields import (
    BOOLEAN,
    TEXT,
    Field,
    Kind,
    Schema,
    group,
    groups,
    list_of,
    read_record,
    typed,
    whole_number,
)
from headwaiter_server.requests.request_path import adopt_id, reserve_nothing

# The header of a body whose tensors follow the JSON: the number of bytes of the JSON.
_JSON_LENGTH = "inference-header-content-length"
BINARY_MEDIA_TYPE = "application/octet-stream"
# The Python types of the values of each type in JSON, and what errors call them.
_JSON_TYPES: dict[str, tuple[set[type], str]] = {
    "BYTES": ({str}, "texts"),
    **dict.fromkeys(("INT32", "INT64"), ({int}, "whole numbers")),
    **dict.fromkeys(("FP16", "FP32"), ({int, float}, "numbers")),
}
# orjson holds Python's global lock while it writes this many numbers.
_NUMBERS_AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class Procedure:
    """A method of the protocol.

    Attributes:
        about: what the method does, for readers of its description.
        read: returns what a request asks, given its body.
        answer: returns the reply to what a request asks.
        write: returns the body of the reply, given what the request asks.
        reply: the body of the reply in JSON Schema.
        fields: the fields of the body; None for a method without a body.
        rules: the rules of its requests.
    """

    errors: ClassVar = OPEN_INFERENCE_ERRORS
    of_model: ClassVar = False

    about: str
    read: Callable[[Request, bytes], Any]
    answer: Callable[[OpenInferenceMethods, Any, Call], Awaitable[Message]]
    write: Callable[[Any, Any], bytes | Written]
    reply: Schema
    fields: tuple[Field, ...] | None = None
    rules: Rules = "callers"


def json_bytes(request: Request, body_bytes: int) -> int:
    """Return the number of bytes of JSON at the start of a body.

    Raises:
        InvalidInput: the header is not a number of bytes of the body.
    """
    header = request.headers.get(_JSON_LENGTH)
    if header is None:
        return body_bytes
    length = int(header) if header.isascii() and header.isdecimal() and len(header) < 20 else -1
    if not 0 <= length <= body_bytes:
        shown = header[:MAX_QUOTED_CHARACTERS]
        raise InvalidInput(f"the header {_JSON_LENGTH} is {shown!r}, and the body has {body_bytes} bytes: correct it")
    return length


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


def _read_options(fields: tuple[Field, ...], request: Request, raw: bytes) -> dict[str, Any]:
    """Return what the fields of a body say, without the model, which must be that of the path."""
    options = read_record(fields, read_object(raw or b"{}"))
    for name, parameter in (("model_name", "model"), ("model_version", "version")):
        # KServe's client repeats the name of the path.
        if options.pop(name, "") not in ("", request.path_params.get(parameter, "")):
            raise InvalidInput(f"{name} is not that of the path: leave it out", field=name)
    return options


def _read_message(kind: type[Message], fields: tuple[Field, ...] | None, request: Request, body: bytes) -> Message:
    options = {} if fields is None else _read_options(fields, request, body)
    named = dict(request.path_params)
    if "model_name" in kind.DESCRIPTOR.fields_by_name:
        named["model_name"] = named.pop("model")
    elif "model" in named:
        named["name"] = named.pop("model")
    return kind(**options, **named)


def _procedure(
    method: str,
    about: str,
    reply: Schema,
    fields: tuple[Field, ...] | None = None,
    rules: Rules = "callers",
    write: Callable[[Any, Any], Any] = lambda _, message: as_json(message),
) -> Procedure:
    """Return a method of messages, which are JSON here."""
    kind, answer = UNARY_METHODS[method]
    read = partial(_read_message, kind, fields)
    return Procedure(about, read, answer, lambda asked, sent: orjson.dumps(write(asked, sent)), reply, fields, rules)


def _write_server(_: Any, reply: oip.ServerMetadataResponse) -> dict[str, Any]:
    return {**as_json(reply), "extensions": sorted([*reply.extensions, "binary_tensor_data"])}


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for inference.

    Attributes:
        question: what the request asks.
        binary: whether the values of each output follow the JSON of the reply, by the name of the output.
        all_binary: whether those of outputs that `binary` does not name do.
    """

    question: InferQuestion
    binary: Mapping[str, bool]
    all_binary: bool


def _read_infer(request: Request, body: bytes) -> Asked:
    length = json_bytes(request, len(body))
    options = _read_options(_INFER_FIELDS, request, body[:length])
    parameters = options.get("parameters", {})
    all_binary = read_record((_ALL_BINARY,), {_ALL_BINARY.name: parameters.pop(_ALL_BINARY.name, None)}, "parameters")
    outputs = options.get("outputs", [])
    question = InferQuestion(
        request.path_params["model"],
        request.path_params.get("version", ""),
        options.get("id", ""),
        _read_inputs(options["inputs"], body, length),
        [each["name"] for each in outputs],
        parameters,
        raw=True,
        size_bytes=len(body),
    )
    binary = {each["name"]: each["binary"] for each in outputs if "binary" in each}
    return Asked(question, binary, all_binary.get("binary", False))


def _read_inputs(described: list[dict[str, Any]], body: bytes, end: int) -> list[Input]:
    """Return the inputs of a body, whose JSON ends at `end`."""
    inputs = []
    for each in described:
        name, datatype, shape, size_bytes = each["name"], each["datatype"], each["shape"], each.get("size_bytes")
        check_input(name, datatype, shape)
        if size_bytes is None:
            inputs.append(Input(name, datatype, shape, _read_values(name, datatype, shape, each.get("data"))))
            continue
        if size_bytes > len(body) - end or "data" in each:
            found = "data too" if "data" in each else f"{len(body) - end} bytes follow"
            problem = f"input {name!r} has binary_data_size {size_bytes}, and {found}"
            raise InvalidInput(f"{problem}: correct the size or the header {_JSON_LENGTH}", field=name)
        inputs.append(Input(name, datatype, shape, body[end : end + size_bytes]))
        end += size_bytes
    if end != len(body):
        raise InvalidInput(
            f"the body has {len(body) - end} bytes after the values of the last input: set binary_data_size in the "
            "parameters of each input whose values follow the JSON",
            field="inputs",
        )
    return inputs


def _read_values(name: str, datatype: str, shape: list[int], data: list[Any] | None) -> NDArray[Any] | list[str]:
    """Return the values of an input whose values are in JSON, nested as the shape or flat."""
    if data is None:
        raise InvalidInput(f"input {name!r} has no data: send its values", field=name)
    values = _flat(name, data, shape)
    kinds, words = _JSON_TYPES[datatype]
    if not kinds.issuperset(map(type, values)):
        raise InvalidInput(f"input {name!r} is {datatype} and has values that are no {words}: correct them", field=name)
    if datatype == "BYTES":
        return values
    dtype = DTYPES[datatype]
    if dtype.kind == "i" and values:
        limits = np.iinfo(dtype)
        if not limits.min <= min(values) <= max(values) <= limits.max:
            raise InvalidInput(f"input {name!r} has a number that {datatype} cannot hold: correct it", field=name)
    with np.errstate(over="ignore"):
        return np.array(values, dtype)


def _flat(name: str, data: list[Any], shape: list[int]) -> list[Any]:
    """Return the values of a list that is flat or nested as its shape, in order.

    Raises:
        InvalidInput: the list is nested in another way.
    """
    if list not in set(map(type, data)):
        return data
    values, sizes = [data], [*shape]
    while sizes and {list}.issuperset(map(type, values)) and {sizes[0]}.issuperset(map(len, values)):
        values = list(chain.from_iterable(values))
        sizes.pop(0)
    if sizes or list in set(map(type, values)):
        problem = f"the data of input {name!r} is nested otherwise than its shape {shape}"
        raise InvalidInput(f"{problem}: send a flat list, or lists of these lengths", field=name)
    return values


async def _infer(methods: OpenInferenceMethods, asked: Asked, call: Call) -> oip.ModelInferResponse:
    adopt_id(call, asked.question.request_id)
    return await methods.infer(asked.question, call, reserve_nothing, lambda reply: reply)


def _write_infer(asked: Asked, reply: oip.ModelInferResponse) -> bytes | Written:
    outputs, values = [], []
    for output, raw in zip(reply.outputs, reply.raw_output_contents, strict=True):
        described: dict[str, Any] = {"name": output.name, "datatype": output.datatype, "shape": list(output.shape)}
        if asked.binary.get(output.name, asked.all_binary):
            described["parameters"] = {"binary_data_size": len(raw)}
            values.append(raw)
        else:
            described["data"] = _json_numbers(np.frombuffer(raw, DTYPES[output.datatype]))
        outputs.append(described)
    named = {"id": reply.id} if reply.id else {}
    model = {"model_name": reply.model_name, "model_version": reply.model_version}
    content = orjson.dumps({**named, **model, "outputs": outputs})
    if not values:
        return content
    return Written(b"".join([content, *values]), BINARY_MEDIA_TYPE, {_JSON_LENGTH: str(len(content))})


def _json_numbers(values: NDArray[Any]) -> orjson.Fragment:
    parts = [
        orjson.dumps(part, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
        for part in np.array_split(values, max(1, math.ceil(len(values) / _NUMBERS_AT_ONCE)))
    ]
    return orjson.Fragment(b"[" + b",".join(part for part in parts if part) + b"]")


_LIST = Kind(lambda value, name: typed(value, name, list, "a list of values"), {"type": "array", "items": {}})
_MODEL_NAME = Field("model_name", TEXT, "options.model_name", "The model of the path.")
_INPUT_FIELDS = (
    Field("name", TEXT, "options.name", "One of the model's inputs.", required=True),
    Field("shape", list_of(whole_number(0)), "options.shape", "The size of each axis.", required=True),
    Field("datatype", TEXT, "options.datatype", "BYTES, INT64, INT32, FP32 or FP16.", required=True),
    group("parameters", TENSOR_PARAMETERS),
    Field("data", _LIST, "options.data", "The values, nested as the shape or flat, unless they follow the JSON."),
)
_BINARY = Field("binary_data", BOOLEAN, "options.binary", "Whether the values follow the JSON of the reply.")
_ALL_BINARY = Field("binary_data_output", BOOLEAN, "options.binary", "Default of binary_data for all outputs.")
_OUTPUT_FIELDS = (
    Field("name", TEXT, "options.name", "One of the model's outputs.", required=True),
    group("parameters", (*TENSOR_PARAMETERS, _BINARY)),
)
_INFER_FIELDS = (
    Field("id", TEXT, "options.id", "Id of the request in the server's log, in X-Request-Id and in the reply."),
    groups("inputs", _INPUT_FIELDS, "options.inputs", "The tensors of the sequences.", required=True),
    groups("outputs", _OUTPUT_FIELDS, "options.outputs", "The wanted tensors; without them, the model's default."),
    group("parameters", (*PARAMETERS, _ALL_BINARY), "options.parameters", "The options of the request."),
    _MODEL_NAME,
    Field("model_version", TEXT, "options.model_version", "The version of the path."),
)
_REPOSITORY = Field("repository_name", TEXT, "options.repository_name", "Only empty.")
# The methods refuse parameters by name.
_PARAMETER_NAMES = Kind(
    lambda value, name: dict.fromkeys(typed(value, name, dict, "an object"), oip.ModelRepositoryParameter()),
    {"type": "object"},
)
_CONTROL_FIELDS = (
    _REPOSITORY,
    _MODEL_NAME,
    Field("parameters", _PARAMETER_NAMES, "options.parameters", "To unload, unload_dependents has no effect."),
)
_TENSORS = array(record(name=STRING, datatype=STRING, shape=array({"type": "integer"})))
_COUNTS = array(record(name=STRING, version=STRING, inference_count=COUNT, execution_count=COUNT))
_VERSIONS = array(record(name=STRING, version=STRING, state=STRING, reason=STRING))
SERVER = _procedure(
    "ServerMetadata", "Describe the server.", record(name=STRING, extensions=array(STRING)), write=_write_server
)
MODEL = _procedure(
    "ModelMetadata", "Describe the tensors of a model.", record(name=STRING, inputs=_TENSORS, outputs=_TENSORS)
)
CONFIG = _procedure(
    "ModelConfig",
    "Describe how a model is batched and where it runs.",
    record(name=STRING, max_batch_size=COUNT),
    write=lambda _, reply: as_json(reply.config),
)
STATISTICS = _procedure("ModelStatistics", "Return the counts and the times of models.", record(model_stats=_COUNTS))
READY = replace(
    _procedure("ModelReady", "Say that a model is ready.", record(ready={"type": "boolean"}), rules="anybody"),
    answer=OpenInferenceMethods.check_model,
    write=lambda asked, _: orjson.dumps({"name": asked.name, "ready": True}),
)
INFER = Procedure(
    "Encode or classify sequences. Values may follow the JSON, as in Triton's extension for binary tensors.",
    _read_infer,
    _infer,
    _write_infer,
    record(model_name=STRING, model_version=STRING, outputs=_TENSORS),
    _INFER_FIELDS,
    "tensors",
)
INDEX = _procedure(
    "RepositoryIndex",
    "List the versions of all models.",
    _VERSIONS,
    (_REPOSITORY, Field("ready", BOOLEAN, "options.ready", "Whether to list only versions that are ready.")),
    write=lambda _, reply: as_json(reply)["models"],
)
LOAD = _procedure("RepositoryModelLoad", "Load a model.", record(), _CONTROL_FIELDS, "admins")
UNLOAD = _procedure("RepositoryModelUnload", "Unload a model.", record(), _CONTROL_FIELDS, "admins")
