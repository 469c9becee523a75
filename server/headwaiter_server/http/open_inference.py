"""The Open Inference Protocol over HTTP."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import orjson
from google.protobuf.message import Message
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headwaiter_proto import open_inference_pb2 as oip
from headwaiter_proto.rules.errors import HeadwaiterError, InvalidInput
from headwaiter_server.http.endpoint import Method, Written
from headwaiter_server.open_inference.json_form import (
    JSON_LENGTH,
    InferQuestion,
    as_json,
    fill_message,
    json_length,
    read_infer_question,
    read_json_object,
    write_infer_reply,
)
from headwaiter_server.open_inference.methods import OpenInferenceMethods
from headwaiter_server.requests.call import Call
from headwaiter_server.requests.request_path import RequestPath, adopt_id, reserve_nothing

_BINARY = "application/octet-stream"
_BINARY_EXTENSION = "binary_tensor_data"
_MODEL, _VERSION = "/v2/models/{model}", "/versions/{version}"


def health_routes(path: RequestPath) -> list[Route]:
    """Return the routes of the health checks, which need no token."""

    async def live(_: Request) -> Response:
        return JSONResponse({"live": True})

    async def ready(_: Request) -> Response:
        return JSONResponse({"ready": path.ready}, 200 if path.ready else 503)

    return [Route("/v2/health/live", live), Route("/v2/health/ready", ready)]


def open_inference_methods(path: RequestPath) -> list[Method[Any]]:
    """Return the methods that callers with a token may use."""
    methods = OpenInferenceMethods(path)
    described: list[Method[Any]] = [
        _method("GET /v2", oip.ServerMetadataRequest, methods.server_metadata, _write_server),
        _method("GET /v2/models/stats", oip.ModelStatisticsRequest, methods.model_statistics),
        _method(f"GET {_MODEL}", oip.ModelMetadataRequest, methods.model_metadata),
        _method(f"GET {_MODEL}/config", oip.ModelConfigRequest, methods.model_config, _write_config),
        _method(f"GET {_MODEL}/stats", oip.ModelStatisticsRequest, methods.model_statistics),
        _method("POST /v2/repository/index", oip.RepositoryIndexRequest, methods.repository_index, _write_index),
        Method(
            f"POST {_MODEL}/infer",
            _read_infer,
            partial(_infer, methods),
            _write_infer,
            _write_error,
            json_bytes=_json_bytes,
        ),
    ]
    return _with_versions(described)


def ready_methods(path: RequestPath) -> list[Method[Any]]:
    """Return the methods that say whether a model can answer requests, which need no token."""

    async def ready(request: oip.ModelReadyRequest, call: Call) -> oip.ModelReadyRequest:
        path.check_model(request.name, request.version, call)
        return request

    return _with_versions([_method(f"GET {_MODEL}/ready", oip.ModelReadyRequest, ready, _write_ready)])


def _with_versions(methods: list[Method[Any]]) -> list[Method[Any]]:
    """Return the methods, and the same methods of a version of a model."""
    versions = [each.at(each.path.replace(_MODEL, _MODEL + _VERSION)) for each in methods if _MODEL in each.path]
    return [*methods, *versions]


def control_methods(path: RequestPath) -> list[Method[Any]]:
    """Return the methods that load and unload models."""
    methods = OpenInferenceMethods(path)
    load = _method("POST /v2/repository/models/{model}/load", oip.RepositoryModelLoadRequest, methods.load_model)
    unload = _method(
        "POST /v2/repository/models/{model}/unload", oip.RepositoryModelUnloadRequest, methods.unload_model
    )
    return [load, unload]


def _method(
    name: str,
    request_class: type[Message],
    answer: Callable[[Any, Call], Awaitable[Message]],
    write: Callable[[Any], Any] = as_json,
) -> Method[Any]:
    async def answer_message(message: Message, call: Call) -> bytes:
        return orjson.dumps(write(await answer(message, call)))

    return Method(name, partial(_read, request_class), answer_message, lambda _, reply: reply, _write_error)


def _read(request_class: type[Message], request: Request, body: bytes) -> Message:
    message = request_class()
    fill_message(message, read_json_object(body))
    names = message.DESCRIPTOR.fields_by_name
    for parameter, fields in {"model": ("name", "model_name"), "version": ("version",)}.items():
        for field in fields:
            in_path = request.path_params.get(parameter)
            if field in names and in_path is not None:
                if getattr(message, field) not in ("", in_path):
                    raise InvalidInput(f"{field} is not that of the path: leave it out", field=field)
                setattr(message, field, in_path)
    return message


def _json_bytes(request: Request, body_bytes: int) -> int:
    return json_length(request.headers.get(JSON_LENGTH), body_bytes)


def _read_infer(request: Request, body: bytes) -> InferQuestion:
    parameters: Mapping[str, str] = request.path_params
    return read_infer_question(
        body, _json_bytes(request, len(body)), parameters["model"], parameters.get("version", "")
    )


async def _infer(methods: OpenInferenceMethods, question: InferQuestion, call: Call) -> oip.ModelInferResponse:
    adopt_id(call, question.request.id)
    return await methods.infer(question.request, call, reserve_nothing, lambda reply: reply)


def _write_infer(question: InferQuestion, reply: oip.ModelInferResponse) -> bytes | Written:
    body, length = write_infer_reply(question, reply)
    return body if length is None else Written(body, _BINARY, {JSON_LENGTH: str(length)})


def _write_server(reply: oip.ServerMetadataResponse) -> dict[str, Any]:
    described = as_json(reply)
    return {**described, "extensions": sorted([*reply.extensions, _BINARY_EXTENSION])}


def _write_config(reply: oip.ModelConfigResponse) -> dict[str, Any]:
    return as_json(reply.config)


def _write_ready(request: oip.ModelReadyRequest) -> dict[str, Any]:
    return {"name": request.name, "ready": True}


def _write_index(reply: oip.RepositoryIndexResponse) -> list[dict[str, Any]]:
    return [as_json(each) for each in reply.models]


def _write_error(error: HeadwaiterError, status: int, question: Any) -> bytes:
    return orjson.dumps({"error": str(error)})
