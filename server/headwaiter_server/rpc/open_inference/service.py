"""The methods of the Open Inference Protocol, from message bytes to message bytes."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from importlib.metadata import version
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto import open_inference_pb2 as oip
from headwaiter_proto.rules.errors import InvalidInput, ModelNotFound, Unavailable, Unimplemented
from headwaiter_server.requests.call import Call
from headwaiter_server.requests.request_path import ReplyForm, RequestPath, ReserveBytes, adopt_id, reserve_nothing
from headwaiter_server.rpc.endpoint import Context, UnaryCalls, refusing_handler, stream_handler
from headwaiter_server.rpc.open_inference.descriptions import (
    model_config,
    model_metadata,
    model_statistics,
    repository_index,
)
from headwaiter_server.rpc.open_inference.infer_requests import WantedReply, read_infer_request
from headwaiter_server.rpc.open_inference.infer_responses import infer_response, padded_answer_bytes
from headwaiter_server.rpc.open_inference.stream import InferStream, Write, wants_grpc_errors
from headwaiter_server.rpc.open_streams import OpenStreams
from headwaiter_server.rpc.parsing import LARGE_BYTES, parse_request

SERVICE = "inference.GRPCInferenceService"
METHODS = frozenset(oip.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name)

# Methods of Triton's extensions that the server does not offer.
_REFUSED_METHODS = (
    "SystemSharedMemoryStatus",
    "SystemSharedMemoryRegister",
    "SystemSharedMemoryUnregister",
    "CudaSharedMemoryStatus",
    "CudaSharedMemoryRegister",
    "CudaSharedMemoryUnregister",
    "TraceSetting",
    "LogSettings",
)
_EXTENSIONS = ("model_configuration", "parameters", "schedule_policy", "statistics")
_CONTROL_EXTENSION = "model_repository"
# A server has one model of a version at a time, so nothing depends on it.
_UNLOAD_PARAMETERS = frozenset({"unload_dependents"})

_Message = TypeVar("_Message", bound=Message)


class OpenInferenceService:
    """Answers the methods of inference.GRPCInferenceService.

    Args:
        path: answers the requests.
        streams: answers the streams.
    """

    def __init__(self, path: RequestPath, calls: UnaryCalls, streams: OpenStreams) -> None:
        self._path, self._calls, self._streams = path, calls, streams

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler that a gRPC server dispatches the service's calls to."""
        unary = {
            "ServerLive": self.server_live,
            "ServerReady": self.server_ready,
            "ModelReady": self.model_ready,
            "ServerMetadata": self.server_metadata,
            "ModelMetadata": self.model_metadata,
            "ModelInfer": self.model_infer,
            "ModelConfig": self.model_config,
            "ModelStatistics": self.model_statistics,
            "RepositoryIndex": self.repository_index,
            "RepositoryModelLoad": self.load_model,
            "RepositoryModelUnload": self.unload_model,
        }
        handlers = {name: self._calls.handler(name, handle) for name, handle in unary.items()}
        recorder, limit = self._path.recorder, self._path.call_limit
        handlers["ModelStreamInfer"] = stream_handler("ModelStreamInfer", self.model_stream_infer, recorder, limit)
        for name in _REFUSED_METHODS:
            handlers[name] = refusing_handler(name, partial(_not_offered, name), recorder)
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    async def server_live(self, raw: bytes, call: Call) -> bytes:
        """Say that the server answers calls."""
        await self._parse(raw, oip.ServerLiveRequest)
        return oip.ServerLiveResponse(live=True).SerializeToString()

    async def server_ready(self, raw: bytes, call: Call) -> bytes:
        """Say whether the server can answer requests for inference."""
        await self._parse(raw, oip.ServerReadyRequest)
        return oip.ServerReadyResponse(ready=self._path.ready).SerializeToString()

    async def model_ready(self, raw: bytes, call: Call) -> bytes:
        """Say whether a model can answer requests; an unknown model cannot."""
        request = await self._parse(raw, oip.ModelReadyRequest)
        ready = self._path.ready
        try:
            with self._path.used(request.name, request.version, call):
                pass
        except (ModelNotFound, Unavailable):
            ready = False
        return oip.ModelReadyResponse(ready=ready).SerializeToString()

    async def server_metadata(self, raw: bytes, call: Call) -> bytes:
        """Describe the server."""
        await self._parse(raw, oip.ServerMetadataRequest)
        extensions = sorted([*_EXTENSIONS, *([_CONTROL_EXTENSION] if self._path.controllable else [])])
        reply = oip.ServerMetadataResponse(name="headwaiter", version=version("headwaiter"), extensions=extensions)
        return reply.SerializeToString()

    async def model_metadata(self, raw: bytes, call: Call) -> bytes:
        """Describe the inputs and the outputs of a model."""
        request = await self._parse(raw, oip.ModelMetadataRequest)
        with self._path.used(request.name, request.version, call) as served:
            return model_metadata(served.facts).SerializeToString()

    async def model_config(self, raw: bytes, call: Call) -> bytes:
        """Describe how a model is batched and where it runs."""
        request = await self._parse(raw, oip.ModelConfigRequest)
        with self._path.used(request.name, request.version, call) as served:
            config = model_config(served.facts, self._path.limits.sequences)
            return oip.ModelConfigResponse(config=config).SerializeToString()

    async def model_statistics(self, raw: bytes, call: Call) -> bytes:
        """Return the counts and the times of one model, or of all models."""
        request = await self._parse(raw, oip.ModelStatisticsRequest)
        engine = self._path.engine
        models = engine.directory.served
        if request.name:
            with self._path.used(request.name, request.version, call) as served:
                models = [served]
        statistics = map(model_statistics, models, await engine.totals(models))
        return oip.ModelStatisticsResponse(model_stats=statistics).SerializeToString()

    async def model_infer(self, raw: bytes, call: Call) -> bytes:
        """Encode the sequences of a request."""
        request = await self._parse(raw, oip.ModelInferRequest)
        adopt_id(call, request.id)
        return await self._infer(request, call, reserve_nothing, oip.ModelInferResponse.SerializeToString)

    async def model_stream_infer(self, messages: AsyncIterator[bytes], context: Context, call: Call) -> None:
        """Encode the sequences of each request of a stream."""
        parse = partial(self._parse, message_type=oip.ModelInferRequest)
        stream = InferStream(parse, self._infer, grpc_errors=wants_grpc_errors(context))
        await self._streams.answer(messages, context, call, stream)

    async def _infer(self, request: oip.ModelInferRequest, call: Call, reserve: ReserveBytes, write: Write) -> bytes:
        with self._path.encoding(request.model_name, request.model_version, call) as served:
            manifest = served.manifest
            read = partial(
                read_infer_request, request, self._path.limits, manifest.head if manifest.HasField("head") else None
            )
            # Unpacking many values takes long; a thread keeps the event loop free.
            large = request.ByteSize() > LARGE_BYTES
            encode_request, wanted = await asyncio.to_thread(read) if large else read()
            size_bytes = partial(
                padded_answer_bytes, wanted=wanted, max_reply_bytes=self._path.settings.max_reply_bytes
            )
            form = ReplyForm(size_bytes, partial(_write_reply, wanted, write))
            return await self._path.encode(encode_request, served, call, reserve, form)

    async def repository_index(self, raw: bytes, call: Call) -> bytes:
        """List the versions that the server knows."""
        request = await self._parse(raw, oip.RepositoryIndexRequest)
        _check_repository(request.repository_name)
        return repository_index(self._path.engine.directory.versions, ready_only=request.ready).SerializeToString()

    async def load_model(self, raw: bytes, call: Call) -> bytes:
        """Load a model."""
        request = await self._parse(raw, oip.RepositoryModelLoadRequest)
        _check_repository(request.repository_name)
        for name in sorted(request.parameters):
            raise Unimplemented(
                f"parameter {name[:100]!r}: the server loads models as they are in its folder: leave the parameter out"
            )
        await self._path.load(request.model_name)
        return oip.RepositoryModelLoadResponse().SerializeToString()

    async def unload_model(self, raw: bytes, call: Call) -> bytes:
        """Unload a model."""
        request = await self._parse(raw, oip.RepositoryModelUnloadRequest)
        _check_repository(request.repository_name)
        for name in sorted(request.parameters.keys() - _UNLOAD_PARAMETERS):
            raise InvalidInput(f"parameter {name[:100]!r} is unknown: leave it out", field="parameters")
        await self._path.unload(request.model_name)
        return oip.RepositoryModelUnloadResponse().SerializeToString()

    async def _parse(self, raw: bytes, message_type: type[_Message]) -> _Message:
        limits = self._path.limits
        # In typed contents, each token and each position of padding is a number of its own.
        return await parse_request(raw, message_type(), limits.sequences, more_fields=limits.tokens)


def _write_reply(wanted: WantedReply, write: Write, response: pb.EncodeResponse) -> bytes:
    return write(infer_response(response, wanted))


def _not_offered(method: str) -> Unimplemented:
    return Unimplemented(f"the server does not offer {method}: it has neither shared memory nor settings of traces")


def _check_repository(name: str) -> None:
    if name:
        raise Unimplemented("the server has one repository, without a name: leave repository_name empty")
