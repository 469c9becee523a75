"""The methods of the Open Inference Protocol, from message to message, the same for gRPC and HTTP."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from importlib.metadata import version
from typing import Any, TypeVar

from google.protobuf.message import Message

from headwaiter_proto import open_inference_pb2 as oip
from headwaiter_proto.rules.errors import InvalidInput, ModelNotFound, Unavailable, Unimplemented
from headwaiter_proto.rules.tasks import SCORES
from headwaiter_server.open_inference.descriptions import (
    model_config,
    model_metadata,
    model_statistics,
    repository_index,
)
from headwaiter_server.open_inference.infer_requests import InferQuestion, read_infer_request
from headwaiter_server.open_inference.infer_responses import infer_response, padded_answer_bytes
from headwaiter_server.requests.call import Call
from headwaiter_server.requests.request_path import ReplyForm, RequestPath, ReserveBytes
from headwaiter_server.requests.threads import LARGE_MESSAGES

_Reply = TypeVar("_Reply")

_EXTENSIONS = ("model_configuration", "parameters", "schedule_policy", "statistics")
_CONTROL_EXTENSION = "model_repository"
# A server has one model of a version at a time, so nothing depends on it.
_UNLOAD_PARAMETERS = frozenset({"unload_dependents"})
# Unpacking takes at most about 3 ms for a message of this size.
_LARGE_BYTES = 256 << 10


class OpenInferenceMethods:
    """Answers the methods of the protocol.

    Args:
        path: answers the requests.
    """

    def __init__(self, path: RequestPath) -> None:
        self._path = path

    async def server_live(self, _: oip.ServerLiveRequest, call: Call) -> oip.ServerLiveResponse:
        """Say that the server answers calls."""
        return oip.ServerLiveResponse(live=True)

    async def server_ready(self, _: oip.ServerReadyRequest, call: Call) -> oip.ServerReadyResponse:
        """Say whether the server can answer requests for inference."""
        return oip.ServerReadyResponse(ready=self._path.ready)

    async def model_ready(self, request: oip.ModelReadyRequest, call: Call) -> oip.ModelReadyResponse:
        """Say whether a model can answer requests; an unknown model cannot."""
        if not request.name:
            return oip.ModelReadyResponse(ready=self._path.ready)
        try:
            return await self.check_model(request, call)
        except (ModelNotFound, Unavailable):
            return oip.ModelReadyResponse(ready=False)

    async def check_model(self, request: oip.ModelReadyRequest, call: Call) -> oip.ModelReadyResponse:
        """Say that a model can answer requests, or raise the error of such a request."""
        self._path.check_model(request.name, request.version, call)
        return oip.ModelReadyResponse(ready=True)

    async def server_metadata(self, _: oip.ServerMetadataRequest, call: Call) -> oip.ServerMetadataResponse:
        """Describe the server."""
        extensions = sorted([*_EXTENSIONS, *([_CONTROL_EXTENSION] if self._path.controllable else [])])
        return oip.ServerMetadataResponse(name="headwaiter", version=version("headwaiter"), extensions=extensions)

    async def model_metadata(self, request: oip.ModelMetadataRequest, call: Call) -> oip.ModelMetadataResponse:
        """Describe the inputs and the outputs of a model."""
        return model_metadata(self._path.facts(request.name, request.version, call))

    async def model_config(self, request: oip.ModelConfigRequest, call: Call) -> oip.ModelConfigResponse:
        """Describe how a model is batched and where it runs."""
        facts = self._path.facts(request.name, request.version, call)
        return oip.ModelConfigResponse(config=model_config(facts, self._path.limits.sequences))

    async def model_statistics(self, request: oip.ModelStatisticsRequest, call: Call) -> oip.ModelStatisticsResponse:
        """Return the counts and the times of one model, or of all models; a model on disk has none."""
        engine = self._path.engine
        models = engine.directory.served
        if request.name:
            models = self._path.loaded(self._path.facts(request.name, request.version, call))
        statistics = map(model_statistics, models, await engine.totals(models))
        return oip.ModelStatisticsResponse(model_stats=statistics)

    async def infer(
        self,
        question: InferQuestion,
        call: Call,
        reserve: ReserveBytes,
        write: Callable[[oip.ModelInferResponse], _Reply],
    ) -> _Reply:
        """Encode the sequences of a request, and return the reply as `write` writes it."""
        wanted_ability = SCORES if "scores" in question.outputs else None
        async with self._path.encoding(question.model, question.version, call, wanted_ability) as served:
            manifest = served.manifest
            head = manifest.head if manifest.HasField("head") else None
            scores, sparse = SCORES.suits(manifest), manifest.sparse
            read = partial(read_infer_request, question, self._path.limits, head, scores=scores, sparse=sparse)
            # Unpacking many values takes long; a thread keeps the event loop free.
            large = question.size_bytes > _LARGE_BYTES
            loop = asyncio.get_running_loop()
            encode_request, wanted = await loop.run_in_executor(LARGE_MESSAGES, read) if large else read()
            max_reply_bytes = self._path.settings.max_reply_bytes
            size_bytes = partial(padded_answer_bytes, wanted=wanted, max_reply_bytes=max_reply_bytes)
            form = ReplyForm(size_bytes, lambda response: write(infer_response(response, wanted)))
            return await self._path.encode(encode_request, served, call, reserve, form)

    async def repository_index(self, request: oip.RepositoryIndexRequest, call: Call) -> oip.RepositoryIndexResponse:
        """List the versions that the server knows."""
        _check_repository(request.repository_name)
        return repository_index(self._path.engine.directory.versions, ready_only=request.ready)

    async def load_model(self, request: oip.RepositoryModelLoadRequest, call: Call) -> oip.RepositoryModelLoadResponse:
        """Load a model."""
        _check_repository(request.repository_name)
        for name in sorted(request.parameters):
            raise Unimplemented(
                f"parameter {name[:100]!r}: the server loads models as they are in its folder: leave the parameter out"
            )
        await self._path.load(request.model_name)
        return oip.RepositoryModelLoadResponse()

    async def unload_model(
        self, request: oip.RepositoryModelUnloadRequest, call: Call
    ) -> oip.RepositoryModelUnloadResponse:
        """Unload a model."""
        _check_repository(request.repository_name)
        for name in sorted(request.parameters.keys() - _UNLOAD_PARAMETERS):
            raise InvalidInput(f"parameter {name[:100]!r} is unknown: leave it out", field="parameters")
        await self._path.unload(request.model_name)
        return oip.RepositoryModelUnloadResponse()


# The methods without tensors, by name: the class of the request, and the method.
UNARY_METHODS: dict[str, tuple[type[Message], Callable[[OpenInferenceMethods, Any, Call], Awaitable[Message]]]] = {
    "ServerLive": (oip.ServerLiveRequest, OpenInferenceMethods.server_live),
    "ServerReady": (oip.ServerReadyRequest, OpenInferenceMethods.server_ready),
    "ModelReady": (oip.ModelReadyRequest, OpenInferenceMethods.model_ready),
    "ServerMetadata": (oip.ServerMetadataRequest, OpenInferenceMethods.server_metadata),
    "ModelMetadata": (oip.ModelMetadataRequest, OpenInferenceMethods.model_metadata),
    "ModelConfig": (oip.ModelConfigRequest, OpenInferenceMethods.model_config),
    "ModelStatistics": (oip.ModelStatisticsRequest, OpenInferenceMethods.model_statistics),
    "RepositoryIndex": (oip.RepositoryIndexRequest, OpenInferenceMethods.repository_index),
    "RepositoryModelLoad": (oip.RepositoryModelLoadRequest, OpenInferenceMethods.load_model),
    "RepositoryModelUnload": (oip.RepositoryModelUnloadRequest, OpenInferenceMethods.unload_model),
}


def _check_repository(name: str) -> None:
    if name:
        raise Unimplemented("the server has one repository, without a name: leave repository_name empty")
