"""The Encoder service: the methods of headwaiter.v1.Encoder, from message bytes to message bytes."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.attention_weights import select
from headwaiter_proto.rules.errors import DeadlineExceeded, Unavailable
from headwaiter_proto.rules.inputs import ParsedInput
from headwaiter_proto.rules.outputs import Output
from headwaiter_proto.rules.requests import check_attend_request, check_id, check_model, read_options
from headwaiter_server.config import Settings
from headwaiter_server.metrics import Recorder
from headwaiter_server.models.tokenizer import BundleTokenizer
from headwaiter_server.rpc.endpoint import Call, Context, clock, log_failures, stream_handler, unary_handler
from headwaiter_server.rpc.inputs import priority_of, read_input
from headwaiter_server.rpc.parsing import parse_request
from headwaiter_server.rpc.replies import (
    answer_bytes,
    attend_answer_bytes,
    attend_reply,
    encode_reply,
    model_ref,
    model_reply,
    request_limits,
    set_timings,
)
from headwaiter_server.rpc.shares import CallLimit, ReplyLimit
from headwaiter_server.rpc.stream import EncodeStream, ReserveBytes, StreamLimits
from headwaiter_server.rpc.threads import PriorityThreads
from headwaiter_server.runtime.attention_weights import AttentionSelection
from headwaiter_server.runtime.model import ModelDescription
from headwaiter_server.scheduling.attention_weights import AttentionWeightsQueue, AttentionWeightsResult
from headwaiter_server.scheduling.calibration import Calibration
from headwaiter_server.scheduling.cost import Shape
from headwaiter_server.scheduling.fair_start import Priority
from headwaiter_server.scheduling.queued_request import BatchTimes, Outcome
from headwaiter_server.scheduling.scheduler import Scheduler
from headwaiter_server.scheduling.stage_durations import Interval

SERVICE = pb.DESCRIPTOR.services_by_name["Encoder"].full_name

_LARGE_REPLY_TOKENS = 1024
# Texts that wait to be tokenised may have the size of this many of the largest requests.
_WAITING_TEXTS = 4

_Message = TypeVar("_Message", bound=Message)


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A model that is ready, with the tokenizer and the queues that its requests go through."""

    model: ModelDescription
    tokenizer: BundleTokenizer | None
    scheduler: Scheduler
    attention_queue: AttentionWeightsQueue
    calibration: Calibration


class EncoderService:
    """Answers the methods of headwaiter.v1.Encoder; answers with Unavailable until `serve` is called.

    Attributes:
        unanswered_count: number of admitted requests without a reply, plus number of open streams.
    """

    def __init__(self, settings: Settings, recorder: Recorder) -> None:
        self._settings = settings
        self._request_limits = request_limits(settings)
        self._recorder = recorder
        self._served: ServedModel | None = None
        self._stream_limits = StreamLimits(
            settings.max_stream_requests,
            settings.max_stream_bytes,
            settings.max_request_sequences,
            settings.max_stream_idle_s,
        )
        self._reply_limit = ReplyLimit(settings.max_reply_bytes)
        self._tokenizing = PriorityThreads("tokenize", max_waiting_bytes=_WAITING_TEXTS * settings.max_request_bytes)
        self._replying = PriorityThreads("reply")
        self._streams: set[EncodeStream] = set()
        self._draining = False
        self.unanswered_count = 0

    @property
    def busy(self) -> bool:
        """Whether a thread works on a request, even if the caller has gone."""
        attending = self._served is not None and self._served.attention_queue.busy
        return attending or self._tokenizing.busy or self._replying.busy

    def serve(self, served: ServedModel) -> None:
        """Answer requests with this model from now on."""
        self._served = served

    def drain(self) -> None:
        """Stop reading streams, and end each stream once its requests are answered."""
        self._draining = True
        for stream in self._streams:
            stream.drain()

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler that a gRPC server dispatches the service's calls to."""
        unary = {
            "Encode": self.encode,
            "Attend": self.attend,
            "ListModels": self.list_models,
            "GetModel": self.get_model,
        }
        limit = CallLimit(self._settings.max_calls)
        handlers = {name: unary_handler(name, handle, self._recorder, limit) for name, handle in unary.items()}
        handlers["EncodeStream"] = stream_handler("EncodeStream", self.encode_stream, self._recorder, limit)
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    async def encode(self, raw: bytes, call: Call) -> bytes:
        """Encode the sequences of a request."""
        request = await self._parse(raw, pb.EncodeRequest())
        _adopt_id(call, request.request_id)
        return await self._encode(request, call, _reserve_nothing)

    async def encode_stream(self, messages: AsyncIterator[bytes], context: Context, call: Call) -> None:
        """Encode the sequences of each request of a stream."""
        stream = EncodeStream(messages, context, call, self._encode, self._recorder, self._stream_limits)
        with self._counted():
            self._streams.add(stream)
            try:
                if self._draining:
                    stream.drain()
                await stream.serve()
            finally:
                self._streams.remove(stream)

    async def _encode(self, request: pb.EncodeRequest, call: Call, reserve: ReserveBytes) -> bytes:
        """Return the serialised reply to a request; queue the request once the bytes of its answer are reserved."""
        served = self._ready()
        output = read_options(request, served.model.bundle.manifest)
        if not request.timeout_s:
            # gRPC itself cancels a call whose deadline passes.
            return await self._answer(request, output, call, served, call.deadline_s, reserve)
        deadline_s = min(call.deadline_s, call.arrived_s + request.timeout_s)
        try:
            async with asyncio.timeout_at(deadline_s):
                return await self._answer(request, output, call, served, deadline_s, reserve)
        except TimeoutError:
            raise _deadline_exceeded(request) from None

    async def _answer(
        self,
        request: pb.EncodeRequest,
        output: Output,
        call: Call,
        served: ServedModel,
        deadline_s: float,
        reserve: ReserveBytes,
    ) -> bytes:
        priority = priority_of(request)

        def check_room(tokens: int) -> None:
            served.scheduler.admit(Shape.of([1] * tokens), deadline_s, priority)

        parsed = await self._read_input(request, served, check_room)
        admitted_s = clock()
        with self._counted():
            reply_bytes = answer_bytes(parsed, output, served.model)
            await reserve(reply_bytes)
            self._reply_limit.hold(call.connection, reply_bytes, call.held)
            outcome = await served.scheduler.submit(
                parsed.sequences,
                hidden=output.needs_rows(parsed.skipped_tokens),
                deadline_s=deadline_s,
                priority=priority,
                failures=parsed.failures.by_sequence if request.partial else None,
                device_failures=call.device_failures,
                on_queued=call.note_queued,
            )
            if clock() >= deadline_s:
                raise _deadline_exceeded(request)
            log_failures(call, outcome.failures)
            respond = partial(self._respond, call, parsed, output, admitted_s, outcome, served.model)
            # Writing rows or offsets of many tokens takes long; a thread keeps the event loop free.
            per_token = outcome.hidden is not None or parsed.offsets is not None
            large = per_token and sum(map(len, parsed.sequences)) > _LARGE_REPLY_TOKENS
            return await self._replying.run(respond, priority) if large else respond()

    async def attend(self, raw: bytes, call: Call) -> bytes:
        """Return the attention weights of one sequence."""
        served = self._ready()
        request = await self._parse(raw, pb.AttendRequest())
        _adopt_id(call, request.request_id)
        manifest = served.model.bundle.manifest
        check_attend_request(request, manifest)
        parsed = await self._read_input(request, served, lambda _: served.attention_queue.admit())
        (sequence,) = parsed.sequences
        selection = AttentionSelection(*select(request, len(sequence), manifest, self._request_limits.attend_bytes))
        admitted_s = clock()
        with self._counted():
            self._reply_limit.hold(call.connection, attend_answer_bytes(selection, len(sequence)), call.held)
            outcome = await served.attention_queue.submit(
                sequence, selection, deadline_s=call.deadline_s, on_queued=call.note_queued
            )
            tokens = served.tokenizer.token_strings(sequence) if served.tokenizer and request.HasField("texts") else []
            # Copying weights takes long; a thread keeps the event loop free.
            respond = partial(self._respond_attend, call, admitted_s, outcome, tokens, served.model)
            return await self._replying.run(respond, Priority.INTERACTIVE)

    async def _read_input(
        self, request: pb.EncodeRequest | pb.AttendRequest, served: ServedModel, check_room: Callable[[int], None]
    ) -> ParsedInput:
        manifest, tokenizer = served.model.bundle.manifest, served.tokenizer
        return await read_input(request, manifest, tokenizer, self._request_limits, self._tokenizing, check_room)

    def _respond(
        self,
        call: Call,
        parsed: ParsedInput,
        output: Output,
        admitted_s: float,
        outcome: Outcome,
        model: ModelDescription,
    ) -> bytes:
        completed_s = outcome.completed_s(clock())
        reply = encode_reply(call.request_id, parsed, output, outcome, model)
        set_timings(reply.timings, call, admitted_s, outcome.batches, completed_s)
        self._recorder.stages(reply.timings)
        return reply.SerializeToString()

    def _respond_attend(
        self, call: Call, admitted_s: float, outcome: AttentionWeightsResult, tokens: list[str], model: ModelDescription
    ) -> bytes:
        reply = attend_reply(call.request_id, outcome.attention, tokens, model)
        batch = BatchTimes(Interval(outcome.run.start_s, outcome.run.start_s), outcome.run)
        set_timings(reply.timings, call, admitted_s, [batch], outcome.run.end_s)
        self._recorder.attend_stages(reply.timings)
        return reply.SerializeToString()

    async def list_models(self, raw: bytes, call: Call) -> bytes:
        """List the server's only model."""
        await self._parse(raw, pb.ListModelsRequest())
        return pb.ListModelsResponse(models=[model_ref(self._ready().model)]).SerializeToString()

    async def get_model(self, raw: bytes, call: Call) -> bytes:
        """Describe the model."""
        served = self._ready()
        check_model((await self._parse(raw, pb.GetModelRequest())).name, served.model.bundle.manifest)
        reply = model_reply(served.model, self._settings, served.calibration, served.scheduler.limits)
        return reply.SerializeToString()

    async def _parse(self, raw: bytes, message: _Message) -> _Message:
        return await parse_request(raw, message, self._request_limits.sequences)

    def _ready(self) -> ServedModel:
        if self._served is None:
            raise Unavailable("the server is starting: wait until its health check reports SERVING")
        return self._served

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Count a request or a stream as unanswered inside the block."""
        self.unanswered_count += 1
        try:
            yield
        finally:
            self.unanswered_count -= 1


def _adopt_id(call: Call, request_id: str) -> None:
    """Use the id of a request for its call, if the request has an id."""
    check_id(request_id)
    call.request_id = request_id or call.request_id


def _deadline_exceeded(request: pb.EncodeRequest) -> DeadlineExceeded:
    if not request.timeout_s:
        return DeadlineExceeded("the answer was ready only after the deadline of the call: allow more time")
    return DeadlineExceeded(
        f"the answer was not ready within the request's timeout_s of {request.timeout_s:g} s: allow more time"
    )


async def _reserve_nothing(_: int) -> None:
    """Reserve no bytes, because a unary call has only one answer."""
