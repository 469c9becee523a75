"""The Encoder service."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import grpc

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_server.config import Settings
from headwaiter_server.errors import DeadlineExceeded, Unavailable
from headwaiter_server.metrics import Recorder
from headwaiter_server.models.tokenizer import BundleTokenizer
from headwaiter_server.rpc import attention_weights as attend
from headwaiter_server.rpc import requests
from headwaiter_server.rpc.endpoint import Call, Context, Gate, clock, log_failures, stream, unary
from headwaiter_server.rpc.inputs import Inputs, read_inputs
from headwaiter_server.rpc.outputs import Output, read_output
from headwaiter_server.rpc.replies import answer_bytes, attend_reply, encode_reply, model_ref, model_reply
from headwaiter_server.rpc.stream import EncodeStream, MakeRoom, StreamLimits
from headwaiter_server.runtime.model import Model
from headwaiter_server.scheduling.attention_weights import AttentionWeightsQueue, AttentionWeightsResult
from headwaiter_server.scheduling.calibration import Calibration
from headwaiter_server.scheduling.queued_request import Outcome
from headwaiter_server.scheduling.scheduler import Scheduler

SERVICE = pb.DESCRIPTOR.services_by_name["Encoder"].full_name

_LARGE_REPLY_TOKENS = 1024


@dataclass(frozen=True, eq=False)
class Serving:
    """A model that is ready to serve, and what stands between it and the callers."""

    model: Model
    text: BundleTokenizer | None
    scheduler: Scheduler
    attender: AttentionWeightsQueue
    calibration: Calibration


class EncoderService:
    """Answers the methods of headwaiter.v1.Encoder; until a model is given to it, with Unavailable.

    Attributes:
        answering: requests that were admitted and have no reply yet, and open streams.
    """

    def __init__(self, settings: Settings, recorder: Recorder) -> None:
        self._settings = settings
        self._request_limits = requests.RequestLimits(settings.max_request_sequences, settings.max_request_tokens)
        self._recorder = recorder
        self._serving: Serving | None = None
        self._stream_limits = StreamLimits(settings.max_stream_requests, settings.max_stream_bytes)
        self._streams: set[EncodeStream] = set()
        self._draining = False
        self.answering = 0

    def open(self, serving: Serving) -> None:
        """Start answering."""
        self._serving = serving

    def drain(self) -> None:
        """Read no further request of any stream, and end each when it has answered what it read."""
        self._draining = True
        for opened in self._streams:
            opened.drain()

    def handler(self) -> grpc.GenericRpcHandler:
        """Return what a gRPC server dispatches to."""
        handles = {
            "Encode": self.encode,
            "Attend": self.attend,
            "ListModels": self.list_models,
            "GetModel": self.get_model,
        }
        gate = Gate(self._settings.max_calls)
        methods = {name: unary(name, handle, self._recorder, gate) for name, handle in handles.items()}
        methods["EncodeStream"] = stream("EncodeStream", self.encode_stream, self._recorder, gate)
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def encode(self, raw: bytes, call: Call) -> bytes:
        """Encode the sequences of a request."""
        request = requests.parse(raw, pb.EncodeRequest())
        _identify(call, request.request_id)
        return await self._encode(request, call, _as_it_comes)

    async def encode_stream(self, messages: AsyncIterator[bytes], context: Context, call: Call) -> None:
        """Encode the sequences of each request of a stream."""
        opened = EncodeStream(messages, context, call, self._encode, self._recorder, self._stream_limits)
        with self._admitted():
            self._streams.add(opened)
            try:
                if self._draining:
                    opened.drain()
                await opened.serve()
            finally:
                self._streams.remove(opened)

    async def _encode(self, request: pb.EncodeRequest, call: Call, make_room: MakeRoom) -> bytes:
        """Return the serialised answer to a request, which waits for room for it before it is queued."""
        serving = self._ready()
        manifest = serving.model.bundle.manifest
        requests.check_model(request.model, manifest)
        requests.check_options(request)
        if not request.timeout_s:
            # When the call's own deadline passes, gRPC cancels it.
            return await self._answer(request, call, serving, call.deadline_s, make_room)
        deadline_s = min(call.deadline_s, call.arrived_s + request.timeout_s)
        try:
            async with asyncio.timeout_at(deadline_s):
                return await self._answer(request, call, serving, deadline_s, make_room)
        except TimeoutError:
            raise DeadlineExceeded("the request's timeout_s passed before its answer was ready") from None

    async def _answer(
        self, request: pb.EncodeRequest, call: Call, serving: Serving, deadline_s: float, make_room: MakeRoom
    ) -> bytes:
        manifest = serving.model.bundle.manifest
        output = read_output(request.output, manifest)
        inputs = await read_inputs(
            request,
            manifest,
            serving.text,
            self._request_limits,
            truncation=requests.truncation_of(request),
            offsets=request.output.offsets,
            keep_failures=request.partial,
        )
        admitted_s = clock()
        with self._admitted():
            await make_room(answer_bytes(inputs, output, serving.model))
            outcome = await serving.scheduler.submit(
                inputs.sequences,
                hidden=output.needs_rows(inputs.skipped_tokens),
                deadline_s=deadline_s,
                priority=requests.priority_of(request),
                failures=inputs.failures.by_sequence if request.partial else None,
            )
            if clock() >= deadline_s:
                raise DeadlineExceeded("the answer came after the request's time-out")
            log_failures(call, outcome.failures)
            respond = partial(self._respond, call, inputs, output, admitted_s, outcome, serving.model)
            # What there is for each token takes long to write: meanwhile others must be heard.
            by_token = outcome.hidden is not None or inputs.offsets is not None
            large = by_token and sum(map(len, inputs.sequences)) > _LARGE_REPLY_TOKENS
            return await asyncio.to_thread(respond) if large else respond()

    async def attend(self, raw: bytes, call: Call) -> bytes:
        """Return what attention looked at in one sequence."""
        serving = self._ready()
        request = requests.parse(raw, pb.AttendRequest())
        _identify(call, request.request_id)
        manifest = serving.model.bundle.manifest
        requests.check_model(request.model, manifest)
        attend.check_offered(manifest)
        attend.check_single(request)
        (sequence,) = (await read_inputs(request, manifest, serving.text, self._request_limits)).sequences
        selection = attend.select(request, len(sequence), manifest, self._settings.max_attend_bytes)
        admitted_s = clock()
        with self._admitted():
            outcome = await serving.attender.submit(sequence, selection, deadline_s=call.deadline_s)
            strings = serving.text.token_strings(sequence) if serving.text and request.HasField("texts") else []
            # Weights take long to copy: meanwhile others must be heard.
            return await asyncio.to_thread(self._respond_attend, call, admitted_s, outcome, strings, serving.model)

    def _respond(
        self, call: Call, inputs: Inputs, output: Output, admitted_s: float, outcome: Outcome, model: Model
    ) -> bytes:
        # Where nothing ran, there was nothing but waiting.
        computed_s = clock() if outcome.computed_s is None else outcome.computed_s
        reply = encode_reply(call.request_id, inputs, output, outcome, model)
        reply.timings.batches = outcome.batches
        return self._finish(reply, call, admitted_s, outcome.assemble_s, outcome.compute_s, computed_s)

    def _respond_attend(
        self, call: Call, admitted_s: float, outcome: AttentionWeightsResult, strings: list[str], model: Model
    ) -> bytes:
        reply = attend_reply(call.request_id, outcome.attention, strings, model)
        reply.timings.batches = 1
        return self._finish(reply, call, admitted_s, 0.0, outcome.compute_s, outcome.computed_s)

    def _finish(
        self,
        reply: pb.EncodeResponse | pb.AttendResponse,
        call: Call,
        admitted_s: float,
        assemble_s: float,
        compute_s: float,
        computed_s: float,
    ) -> bytes:
        """Note where the time went, and serialise the reply."""
        finished_s = clock()
        stages = {
            "tokenize": admitted_s - call.arrived_s,
            "queue": computed_s - admitted_s - assemble_s - compute_s,
            "assemble": assemble_s,
            "compute": compute_s,
            "respond": finished_s - computed_s,
        }
        for stage, duration_s in stages.items():
            setattr(reply.timings, f"{stage}_s", duration_s)
        reply.timings.total_s = finished_s - call.arrived_s
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

    @contextmanager
    def _admitted(self) -> Iterator[None]:
        """Count a request among those that are answered before the server stops."""
        self.answering += 1
        try:
            yield
        finally:
            self.answering -= 1


def _identify(call: Call, request_id: str) -> None:
    """Call a request what its caller calls it."""
    requests.check_id(request_id)
    call.request_id = request_id or call.request_id


async def _as_it_comes(_: int) -> None:
    """Hold an answer of any size: a call without a stream has no more than one."""
