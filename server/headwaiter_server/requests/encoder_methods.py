"""The methods of headwaiter.v1.Encoder, from a request to the bytes of its reply, the same for gRPC and HTTP."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.attend import select
from headwaiter_proto.rules.classification import encode_request
from headwaiter_proto.rules.requests import check_attend_request
from headwaiter_proto.rules.token_types import without_types
from headwaiter_proto.rules.tokens import read_tokenize_request
from headwaiter_server.models.served_model import ServedModel
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
from headwaiter_server.runtime.attention_weights import AttentionSelection, AttentionWeights
from headwaiter_server.scheduling.fair_start import Priority
from headwaiter_server.scheduling.job import BatchTimes, Interval

# Takes the message of a request, and returns the serialised message of the reply.
AnswerMessage = Callable[[Any, Call], Awaitable[bytes]]


class EncoderMethods:
    """Answers the methods of headwaiter.v1.Encoder that take one message.

    Args:
        path: answers the requests to encode.

    Attributes:
        by_name: answers a method, by the name of the method.
    """

    def __init__(self, path: RequestPath) -> None:
        self._path = path
        self.by_name: Mapping[str, AnswerMessage] = {
            "Encode": self.encode,
            "Classify": self.classify,
            "Tokenize": self.tokenize,
            "Attend": self.attend,
            "ListModels": self.list_models,
            "GetModel": self.get_model,
            "LoadModel": self.load_model,
            "UnloadModel": self.unload_model,
            "ListBatches": self.list_batches,
        }

    async def encode(self, request: pb.EncodeRequest, call: Call) -> bytes:
        """Encode the sequences of a request."""
        adopt_id(call, request.request_id)
        return await self._path.encode_packed(request, call, reserve_nothing)

    async def classify(self, request: pb.ClassifyRequest, call: Call) -> bytes:
        """Classify the sequences of a request: encode them, and return the scores of the model's head."""
        adopt_id(call, request.request_id)
        return await self._path.classify(encode_request(request), call, pb.ClassifyResponse.SerializeToString)

    async def tokenize(self, request: pb.TokenizeRequest, call: Call) -> bytes:
        """Return the tokens of texts or pairs."""
        adopt_id(call, request.request_id)
        write = pb.TokenizeResponse.SerializeToString
        return await self._path.tokenize(read_tokenize_request(request), call, write, strings=request.strings)

    async def attend(self, request: pb.AttendRequest, call: Call) -> bytes:
        """Return the attention weights of one sequence."""
        adopt_id(call, request.request_id)
        with await self._path.used(request.model, request.model_version, call) as served:
            return await self._attend(request, call, served)

    async def _attend(self, request: pb.AttendRequest, call: Call, served: ServedModel) -> bytes:
        manifest = served.manifest
        check_attend_request(request, manifest)
        engine = self._path.engine
        parsed = await self._path.read_input(request, served, call, lambda _: engine.check_attention_room(served))
        (sequence,) = parsed.sequences
        selection = AttentionSelection(*select(request, len(sequence), manifest, self._path.limits.attend_bytes))
        admitted_s = clock()
        with self._path.counted():
            self._path.hold_reply(call, attend_answer_bytes(selection, len(sequence)))
            attention, run = await engine.attend(
                served, sequence, selection, deadline_s=call.deadline_s, on_queued=call.note_queued
            )
            tokens = []
            if served.tokenizer and request.WhichOneof("input") in ("texts", "pairs"):
                tokens = served.tokenizer.token_strings(without_types(sequence))
            # Copying weights takes long; a thread keeps the event loop free.
            respond = partial(self._respond_attend, call, admitted_s, attention, run, tokens, served)
            return await self._path.replying.run(respond, Priority.INTERACTIVE, call.holder)

    def _respond_attend(
        self,
        call: Call,
        admitted_s: float,
        attention: AttentionWeights,
        run: Interval,
        tokens: list[str],
        served: ServedModel,
    ) -> bytes:
        reply = attend_reply(call.request_id, attention, tokens, served)
        batch = BatchTimes(Interval(run.start_s, run.start_s), run)
        set_timings(reply.timings, call, admitted_s, [batch], run.end_s)
        served.recorder.attend_stages(reply.timings)
        return reply.SerializeToString()

    async def list_models(self, request: pb.ListModelsRequest, call: Call) -> bytes:
        """List the models that answer requests, loaded or on disk, and all versions that the server knows."""
        directory = self._path.engine.directory
        reply = pb.ListModelsResponse(models=map(model_ref, directory.known))
        reply.versions.extend(model_status(version) for version in directory.versions)
        return reply.SerializeToString()

    async def get_model(self, request: pb.GetModelRequest, call: Call) -> bytes:
        """Describe a model; a model on disk is not loaded for this."""
        described = pb.GetModelResponse()
        facts = self._path.facts(request.name, request.version, call)
        for served in self._path.loaded(facts):
            with served:
                described = await self._path.engine.describe(served)
        return model_reply(facts, self._path.limits, described).SerializeToString()

    async def load_model(self, request: pb.LoadModelRequest, call: Call) -> bytes:
        """Load a model."""
        await self._path.load(request.name)
        facts = self._path.engine.directory.facts(request.name)
        return pb.LoadModelResponse(model=model_ref(facts)).SerializeToString()

    async def unload_model(self, request: pb.UnloadModelRequest, call: Call) -> bytes:
        """Unload a model."""
        await self._path.unload(request.name)
        return pb.UnloadModelResponse().SerializeToString()

    async def list_batches(self, request: pb.ListBatchesRequest, call: Call) -> bytes:
        """List the latest batches of one model, or of all models."""
        engine = self._path.engine
        models = engine.directory.served
        if request.model:
            models = self._path.loaded(self._path.facts(request.model, "", call))
        return (await engine.batches(models)).SerializeToString()
