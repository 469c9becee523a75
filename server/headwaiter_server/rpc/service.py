"""The Encoder service."""

import asyncio
from dataclasses import dataclass
from functools import partial

import grpc
import numpy as np
from numpy.typing import NDArray

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_server.batching.calibration import Calibration
from headwaiter_server.batching.job import Outcome
from headwaiter_server.batching.scheduler import Scheduler
from headwaiter_server.config import Settings
from headwaiter_server.errors import DeadlineExceeded, InvalidInput, Unavailable, Unimplemented
from headwaiter_server.metrics import Recorder
from headwaiter_server.rpc import requests
from headwaiter_server.rpc.endpoint import Call, clock, refusal, unary
from headwaiter_server.rpc.replies import encode_reply, model_ref, model_reply, wants_hidden
from headwaiter_server.runtime.model import Model
from headwaiter_server.text import TextEncoder

SERVICE = pb.DESCRIPTOR.services_by_name["Encoder"].full_name

_LARGE_REPLY_TOKENS = 1024
_SMALL_TEXT_BYTES = 1024


@dataclass(frozen=True, eq=False)
class Serving:
    """A model that is ready to serve, and what stands between it and the callers."""

    model: Model
    text: TextEncoder | None
    scheduler: Scheduler
    calibration: Calibration


class EncoderService:
    """Answers the methods of headwaiter.v1.Encoder; until a model is given to it, with Unavailable.

    Attributes:
        answering: requests that were admitted and have no reply yet.
    """

    def __init__(self, settings: Settings, recorder: Recorder) -> None:
        self._settings = settings
        self._request_limits = requests.RequestLimits(settings.max_request_sequences, settings.max_request_tokens)
        self._recorder = recorder
        self._serving: Serving | None = None
        self.answering = 0

    def open(self, serving: Serving) -> None:
        """Start answering."""
        self._serving = serving

    def handler(self) -> grpc.GenericRpcHandler:
        """Return what a gRPC server dispatches to."""
        handles = {
            "Encode": self.encode,
            "ListModels": self.list_models,
            "GetModel": self.get_model,
        }
        methods = {name: unary(name, handle, self._recorder) for name, handle in handles.items()}
        for name in set(pb.DESCRIPTOR.services_by_name["Encoder"].methods_by_name) - handles.keys():
            methods[name] = refusal(name, _unimplemented, self._recorder)
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def encode(self, raw: bytes, call: Call) -> bytes:
        """Encode the sequences of a request."""
        serving = self._ready()
        request = requests.parse(raw, pb.EncodeRequest())
        requests.check_id(request.request_id)
        call.request_id = request.request_id or call.request_id
        deadline_s = min(call.deadline_s, call.arrived_s + (request.timeout_s or float("inf")))
        sequences = await self._sequences(request, serving)
        admitted_s = clock()
        self.answering += 1
        try:
            outcome = await serving.scheduler.submit(
                sequences, hidden=wants_hidden(request, serving.model), deadline_s=deadline_s
            )
            if clock() >= deadline_s:
                raise DeadlineExceeded("the answer came after the request's time-out")
            lengths = [len(sequence) for sequence in sequences]
            respond = partial(self._respond, request, call, lengths, admitted_s, outcome, serving.model)
            # Hidden rows take long to copy: meanwhile others must be heard.
            large = outcome.hidden is not None and sum(lengths) > _LARGE_REPLY_TOKENS
            return await asyncio.to_thread(respond) if large else respond()
        finally:
            self.answering -= 1

    def _respond(
        self,
        request: pb.EncodeRequest,
        call: Call,
        lengths: list[int],
        admitted_s: float,
        outcome: Outcome,
        model: Model,
    ) -> bytes:
        reply = encode_reply(request, call.request_id, lengths, outcome, model)
        finished_s = clock()
        stages = {
            "tokenize": admitted_s - call.arrived_s,
            "queue": outcome.computed_s - admitted_s - outcome.assemble_s - outcome.compute_s,
            "assemble": outcome.assemble_s,
            "compute": outcome.compute_s,
            "respond": finished_s - outcome.computed_s,
        }
        for stage, duration_s in stages.items():
            setattr(reply.timings, f"{stage}_s", duration_s)
        reply.timings.total_s = finished_s - call.arrived_s
        reply.timings.batches = outcome.batches
        self._recorder.stages(stages)
        return reply.SerializeToString()

    async def list_models(self, raw: bytes, call: Call) -> bytes:
        """List the one model."""
        requests.parse(raw, pb.ListModelsRequest())
        return pb.ListModelsResponse(models=[model_ref(self._ready().model)]).SerializeToString()

    async def get_model(self, raw: bytes, call: Call) -> bytes:
        """Describe the model."""
        serving = self._ready()
        name = requests.parse(raw, pb.GetModelRequest()).name
        requests.check_model(name, serving.model.bundle.manifest)
        return model_reply(serving.model, self._settings, serving.calibration).SerializeToString()

    def _ready(self) -> Serving:
        if self._serving is None:
            raise Unavailable("the server is starting: wait until its health check says SERVING")
        return self._serving

    async def _sequences(self, request: pb.EncodeRequest, serving: Serving) -> list[NDArray[np.generic]]:
        manifest = serving.model.bundle.manifest
        requests.check_model(request.model, manifest)
        requests.check_options(request, manifest)
        match request.WhichOneof("input"):
            case "tokens":
                return requests.read_tokens(request.tokens, manifest, self._request_limits)
            case "features":
                return requests.read_features(request.features, manifest, self._request_limits)
            case "texts":
                return await self._tokenize(request.texts, serving)
            case _:
                raise InvalidInput("the request has no input: give it tokens, features or texts")

    async def _tokenize(self, texts: pb.Texts, serving: Serving) -> list[NDArray[np.generic]]:
        if serving.text is None:
            raise InvalidInput("texts: the model has no tokenizer; send token ids or features", field="texts")
        requests.check_texts(texts, self._request_limits)
        values = list(texts.values)
        encode = partial(serving.text.encode, values, self._request_limits.tokens)
        # A short text takes less time than a thread takes to hear of it; several wait for the tokenizer's own threads.
        small = len(values) == 1 and texts.ByteSize() <= _SMALL_TEXT_BYTES
        sequences = encode() if small else await asyncio.to_thread(encode)
        requests.check_tokens(sum(map(len, sequences)), self._request_limits)
        return list(sequences)


def _unimplemented() -> Unimplemented:
    return Unimplemented("this server does not offer the method yet")
