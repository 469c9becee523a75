"""The Encoder service: the methods of headwaiter.v1.Encoder, from message bytes to message bytes."""

from collections.abc import AsyncIterator
from functools import partial
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.attention_weights import select
from headwaiter_proto.rules.classification import encode_request
from headwaiter_proto.rules.requests import check_attend_request
from headwaiter_proto.rules.token_types import without_types
from headwaiter_server.models.served_model import ServedModel
from headwaiter_server.requests.batches import batches_reply
from headwaiter_server.requests.call import Call, clock
from headwaiter_server.requests.replies import (
    attend_answer_bytes,
    attend_reply,
    model_ref,
    model_reply,
    model_status,
    set_timings,
)
from headwaiter_server.requests.request_path import RequestPath, adopt_id, reserve_nothing
from headwaiter_server.rpc.encode_stream import EncodeStream
from headwaiter_server.rpc.endpoint import Context, stream_handler, unary_handler
from headwaiter_server.rpc.open_streams import OpenStreams
from headwaiter_server.rpc.parsing import parse_request
from headwaiter_server.runtime.attention_weights import AttentionSelection
from headwaiter_server.scheduling.attention_weights import AttentionWeightsResult
from headwaiter_server.scheduling.fair_start import Priority
from headwaiter_server.scheduling.queued_request import BatchTimes, Interval

SERVICE = pb.DESCRIPTOR.services_by_name["Encoder"].full_name

_Message = TypeVar("_Message", bound=Message)


class EncoderService:
    """Answers the methods of headwaiter.v1.Encoder.

    Args:
        path: answers the requests.
        streams: answers the streams.
    """

    def __init__(self, path: RequestPath, streams: OpenStreams) -> None:
        self._path, self._streams = path, streams

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler that a gRPC server dispatches the service's calls to."""
        unary = {
            "Encode": self.encode,
            "Classify": self.classify,
            "Attend": self.attend,
            "ListModels": self.list_models,
            "GetModel": self.get_model,
            "LoadModel": self.load_model,
            "UnloadModel": self.unload_model,
            "ListBatches": self.list_batches,
        }
        recorder, limit = self._path.recorder, self._path.call_limit
        handlers = {name: unary_handler(name, handle, recorder, limit) for name, handle in unary.items()}
        handlers["EncodeStream"] = stream_handler("EncodeStream", self.encode_stream, recorder, limit)
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    async def encode(self, raw: bytes, call: Call) -> bytes:
        """Encode the sequences of a request."""
        request = await self._parse(raw, pb.EncodeRequest())
        adopt_id(call, request.request_id)
        return await self._path.encode_packed(request, call, reserve_nothing)

    async def encode_stream(self, messages: AsyncIterator[bytes], context: Context, call: Call) -> None:
        """Encode the sequences of each request of a stream."""
        stream = EncodeStream(self._path.encode_packed, self._path.limits.sequences)
        await self._streams.answer(messages, context, call, stream)

    async def classify(self, raw: bytes, call: Call) -> bytes:
        """Classify the sequences of a request: encode them, and return the scores of the model's head."""
        request = encode_request(await self._parse(raw, pb.ClassifyRequest()))
        adopt_id(call, request.request_id)
        return await self._path.classify(request, call)

    async def attend(self, raw: bytes, call: Call) -> bytes:
        """Return the attention weights of one sequence."""
        request = await self._parse(raw, pb.AttendRequest())
        adopt_id(call, request.request_id)
        with self._path.used(request.model, request.model_version, call) as served:
            return await self._attend(request, call, served)

    async def _attend(self, request: pb.AttendRequest, call: Call, served: ServedModel) -> bytes:
        manifest = served.model.bundle.manifest
        check_attend_request(request, manifest)
        parsed = await self._path.read_input(request, served, lambda _: served.attention_queue.admit())
        (sequence,) = parsed.sequences
        selection = AttentionSelection(*select(request, len(sequence), manifest, self._path.limits.attend_bytes))
        admitted_s = clock()
        with self._path.counted():
            self._path.reply_limit.hold(call.connection, attend_answer_bytes(selection, len(sequence)), call.held)
            outcome = await served.attention_queue.submit(
                sequence, selection, deadline_s=call.deadline_s, on_queued=call.note_queued
            )
            tokens = []
            if served.tokenizer and request.HasField("texts"):
                tokens = served.tokenizer.token_strings(without_types(sequence))
            # Copying weights takes long; a thread keeps the event loop free.
            respond = partial(self._respond_attend, call, admitted_s, outcome, tokens, served)
            return await self._path.replying.run(respond, Priority.INTERACTIVE)

    def _respond_attend(
        self, call: Call, admitted_s: float, outcome: AttentionWeightsResult, tokens: list[str], served: ServedModel
    ) -> bytes:
        reply = attend_reply(call.request_id, outcome.attention, tokens, served)
        batch = BatchTimes(Interval(outcome.run.start_s, outcome.run.start_s), outcome.run)
        set_timings(reply.timings, call, admitted_s, [batch], outcome.run.end_s)
        served.recorder.attend_stages(reply.timings)
        return reply.SerializeToString()

    async def list_models(self, raw: bytes, call: Call) -> bytes:
        """List the models that answer requests, and all versions that the server knows."""
        await self._parse(raw, pb.ListModelsRequest())
        repository = self._path.repository
        reply = pb.ListModelsResponse(models=[model_ref(served) for served in repository.served])
        reply.versions.extend(model_status(version) for version in repository.versions)
        return reply.SerializeToString()

    async def get_model(self, raw: bytes, call: Call) -> bytes:
        """Describe a model."""
        request = await self._parse(raw, pb.GetModelRequest())
        with self._path.used(request.name, request.version, call) as served:
            return model_reply(served, self._path.settings).SerializeToString()

    async def load_model(self, raw: bytes, call: Call) -> bytes:
        """Load a model."""
        request = await self._parse(raw, pb.LoadModelRequest())
        served = await self._path.controlled_repository.load(request.name)
        return pb.LoadModelResponse(model=model_ref(served)).SerializeToString()

    async def unload_model(self, raw: bytes, call: Call) -> bytes:
        """Unload a model."""
        request = await self._parse(raw, pb.UnloadModelRequest())
        await self._path.controlled_repository.unload(request.name)
        return pb.UnloadModelResponse().SerializeToString()

    async def list_batches(self, raw: bytes, call: Call) -> bytes:
        """List the latest batches of one model, or of all models."""
        request = await self._parse(raw, pb.ListBatchesRequest())
        models = self._path.repository.served
        if request.model:
            with self._path.used(request.model, "", call) as served:
                models = [served]
        return batches_reply(models, clock()).SerializeToString()

    async def _parse(self, raw: bytes, message: _Message) -> _Message:
        return await parse_request(raw, message, self._path.limits.sequences)
