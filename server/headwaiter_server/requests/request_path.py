"""The path of every request to encode, the same for all protocols: find the model, check, ask the engine, reply.

A protocol turns its own message into an EncodeRequest of headwaiter.v1 before this path, and gives a ReplyForm, which
turns the EncodeResponse into the bytes of its own reply.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules.classification import classify_response, read_head
from headwaiter_proto.rules.errors import DeadlineExceeded, Failures, ModelNotFound, Unavailable, Unimplemented
from headwaiter_proto.rules.outputs import WantedOutput
from headwaiter_proto.rules.requests import check_id, read_options
from headwaiter_proto.rules.sequences import ParsedInput
from headwaiter_proto.rules.tasks import SCORES, SPARSE_VECTORS, TOKENIZES, Ability
from headwaiter_proto.rules.token_types import without_types
from headwaiter_proto.rules.tokens import check_tokenize_request, tokenize_response
from headwaiter_server.engine.interface import Engine
from headwaiter_server.inputs.tokenizer import Truncation
from headwaiter_server.metrics.recorder import Recorder
from headwaiter_server.models.directory import NotLoaded, starting
from headwaiter_server.models.served_model import ModelFacts, ServedModel
from headwaiter_server.requests.call import Call, clock, log_failures
from headwaiter_server.requests.inputs import CheckRoom, InputReaders, priority_of, read_input
from headwaiter_server.requests.replies import answer_bytes, encode_reply, model_ref, set_timings
from headwaiter_server.requests.shares import CallLimit, InputLimit, ReplyLimit
from headwaiter_server.requests.threads import THREADS, PriorityThreads
from headwaiter_server.scheduling.fair_start import Priority
from headwaiter_server.scheduling.job import Job, Outcome
from headwaiter_server.settings.flags import Settings

_LARGE_REPLY_TOKENS = 1024
_LARGE_REPLY_SEQUENCES = 512
_LARGE_REPLY_BYTES = 1 << 20
# Texts that are being tokenised, or wait for it, may have the size of this many of the largest requests; so may images
# that are being decoded. One connection alone may hold half: one request for each thread, and four that wait.
_LARGEST_REQUESTS = 2 * (THREADS + 4)

# Waits until the caller's limits leave room for a reply of this many bytes.
ReserveBytes = Callable[[int], Awaitable[None]]
_Reply = TypeVar("_Reply")


@dataclass(frozen=True)
class ReplyForm(Generic[_Reply]):
    """The form of a reply in one protocol.

    Attributes:
        size_bytes: returns the largest size of the vectors and rows of a reply, in bytes.
        write: returns what the protocol sends, or writes later; called in a thread if the reply has many rows.
    """

    size_bytes: Callable[[ParsedInput, WantedOutput, Manifest], int]
    write: Callable[[pb.EncodeResponse], _Reply]


PACKED_REPLY = ReplyForm(answer_bytes, pb.EncodeResponse.SerializeToString)


class RequestPath:
    """Answers requests to encode.

    Args:
        settings: the settings of the server.
        recorder: counts and times the requests.
        engine: runs the models.

    Attributes:
        limits: the limits of one request.
        call_limit: limits the calls of all services together.
        reply_limit: limits the bytes of the replies of all services together.
        replying: threads that write large replies.
        draining: whether the server is about to stop.
        unanswered_count: number of admitted requests without a reply, plus number of open streams.
    """

    def __init__(self, settings: Settings, recorder: Recorder, engine: Engine) -> None:
        self.settings, self.recorder, self.engine = settings, recorder, engine
        self.limits = settings.request_limits
        self.call_limit = CallLimit(settings.max_front_end_calls)
        self.reply_limit = ReplyLimit(settings.max_reply_bytes)
        self.replying = PriorityThreads("reply")
        limits = (InputLimit(_LARGEST_REQUESTS * settings.max_request_bytes) for _ in range(3))
        # Requests that wait for the load of their model have no place in a queue yet.
        self._waiting_limit = next(limits)
        self._readers = InputReaders(PriorityThreads("tokenize"), PriorityThreads("decode"), *limits)
        self.draining = False
        self.unanswered_count = 0

    @property
    def ready(self) -> bool:
        """Whether the server answers new requests."""
        return self.engine.directory.available and not self.draining

    @property
    def controllable(self) -> bool:
        """Whether callers may load and unload models."""
        return self.settings.model_control == "on" and self.settings.models is not None

    async def load(self, name: str) -> None:
        """Load a model.

        Raises:
            Unimplemented: callers may not load models.
        """
        self._check_control()
        await self.engine.load(name)

    async def unload(self, name: str) -> None:
        """Unload a model.

        Raises:
            Unimplemented: callers may not unload models.
        """
        self._check_control()
        await self.engine.unload(name)

    def _check_control(self) -> None:
        if not self.controllable:
            raise Unimplemented(
                "the server does not let callers load and unload models: start it with --models and --model-control on"
            )

    def drain(self) -> None:
        """Answer no new requests from now on."""
        self.draining = True

    def hold_reply(self, call: Call, size_bytes: int) -> None:
        """Reserve the bytes of a reply, unless some are reserved already, until the caller has taken the reply.

        Raises:
            Overloaded: the replies that callers have not taken hold too many bytes.
        """
        if not call.reply_bytes:
            self.reply_limit.hold(call.holder, size_bytes, call.held)
            call.reply_bytes = size_bytes

    def _hold_more(self, call: Call, size_bytes: int) -> None:
        """Reserve further bytes of a reply that is larger than was expected.

        Raises:
            Overloaded: the replies that callers have not taken hold too many bytes.
        """
        if size_bytes > call.reply_bytes:
            self.reply_limit.hold(call.holder, size_bytes, call.held, reserved_bytes=call.reply_bytes)
            call.reply_bytes = size_bytes

    async def used(
        self, name: str, version: str, call: Call, wanted: Ability | None = None, timeout_s: float = 0.0
    ) -> ServedModel:
        """Return the model of a request, which stays loaded in a `with` block; see `ModelDirectory.find`.

        If the model is on disk, the request waits for its load, which goes on if the request ends before.
        """
        while True:
            try:
                served = self.engine.directory.find(name, version, wanted)
            except NotLoaded as missing:
                call.model = missing.facts.name, missing.facts.version
                await self._load_on_demand(missing.facts.name, call, timeout_s)
            else:
                call.model = served.labels
                return served

    async def _load_on_demand(self, name: str, call: Call, timeout_s: float) -> None:
        try:
            # gRPC itself cancels a call whose deadline passes.
            async with asyncio.timeout_at(call.arrived_s + timeout_s if timeout_s else None):
                with self._waiting_limit.held(call.holder, call.request_bytes):
                    await self.engine.load_on_demand(name)
        except TimeoutError:
            raise DeadlineExceeded(
                f"the model {name!r} was not loaded within the request's timeout_s of {timeout_s:g} s: allow more time"
            ) from None

    def facts(self, name: str, version: str, call: Call) -> ModelFacts:
        """Return what is known of the model of a request, without loading the model; see `ModelDirectory.facts`."""
        facts = self.engine.directory.facts(name, version)
        call.model = facts.name, facts.version
        return facts

    def loaded(self, facts: ModelFacts) -> list[ServedModel]:
        """Return the model with these facts if it is loaded."""
        return [each for each in self.engine.directory.current if each.facts is facts]

    def check_model(self, name: str, version: str, call: Call) -> None:
        """Check that a model answers requests, for callers that need no token.

        Callers without a token learn whether the model that they name is ready. They learn neither the names of other
        models nor why a version failed.

        Raises:
            ModelNotFound: no model of this name and version is served.
            Starting: the server is starting, or it is loading the model.
            Unavailable: the server is draining.
        """
        if not self.engine.directory.started:
            raise starting()
        if not self.ready:
            raise Unavailable("the server answers no new requests: send the request to another replica")
        try:
            self.facts(name, version, call)
        except ModelNotFound:
            raise ModelNotFound("the model is not served: list the models, with a token", field="model") from None

    @asynccontextmanager
    async def encoding(
        self, name: str, version: str, call: Call, wanted: Ability | None = None, timeout_s: float = 0.0
    ) -> AsyncIterator[ServedModel]:
        """Do what `used` does, and count the request as failed if the block fails."""
        with await self.used(name, version, call, wanted, timeout_s) as served:
            try:
                yield served
            except BaseException:
                served.recorder.request_failed(clock() - call.arrived_s)
                raise

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count a request or a stream as unanswered inside the block."""
        self.unanswered_count += 1
        try:
            yield
        finally:
            self.unanswered_count -= 1

    async def encode(
        self, request: pb.EncodeRequest, served: ServedModel, call: Call, reserve: ReserveBytes, form: ReplyForm[_Reply]
    ) -> _Reply:
        """Return the reply to a request in its form; queue the request once the bytes of its reply are reserved."""
        output = read_options(request, served.manifest)
        deadline_s = min(call.deadline_s, call.arrived_s + request.timeout_s) if request.timeout_s else call.deadline_s
        try:
            # gRPC itself cancels a call whose deadline passes.
            async with asyncio.timeout_at(deadline_s if request.timeout_s else None):
                parsed = await self.read_input(
                    request,
                    served,
                    call,
                    lambda tokens: self.engine.check_room(
                        served, tokens, deadline_s, priority_of(request), call.tenant
                    ),
                )
                call.truncated = parsed.truncated.keys()
                admitted_s = clock()
                with self.counted():
                    reply_bytes = form.size_bytes(parsed, output, served.manifest)
                    await reserve(reply_bytes)
                    self.hold_reply(call, reply_bytes)
                    job = _job(request, parsed, output, call, deadline_s)
                    outcome = await self.engine.submit(served, job, call.note_queued)
                    if clock() >= deadline_s:
                        raise _deadline_exceeded(request)
                    log_failures(call, outcome.failures)
                    self.recorder.encoded(call.tenant.name, parsed.sequences)
                    if output.sparse and outcome.pooled:
                        estimate = answer_bytes(parsed, output, served.manifest)
                        reply_bytes = sum(entries.nbytes for entries in outcome.pooled) * reply_bytes // estimate
                        self._hold_more(call, reply_bytes)
                    respond = partial(_respond, call, parsed, output, admitted_s, outcome, served, form)
                    if not _is_large(parsed, output, outcome, reply_bytes):
                        return respond()
                    # Writing many values takes long; a thread keeps the event loop free.
                    return await self.replying.run(respond, job.priority, call.holder)
        except TimeoutError:
            raise _deadline_exceeded(request) from None

    async def encode_packed(self, request: pb.EncodeRequest, call: Call, reserve: ReserveBytes) -> bytes:
        """Find the model of a request, and return the serialised EncodeResponse."""
        wanted = SCORES if request.output.scores else SPARSE_VECTORS if request.output.sparse else None
        async with self.encoding(request.model, request.model_version, call, wanted, request.timeout_s) as served:
            return await self.encode(request, served, call, reserve, PACKED_REPLY)

    async def classify(
        self,
        request: pb.EncodeRequest,
        call: Call,
        write: Callable[[pb.ClassifyResponse], _Reply],
        wanted: Ability = SCORES,
        adapt: Callable[[Manifest], None] = lambda _: None,
    ) -> _Reply:
        """Return the reply to a request for scores, from a model with an ability, as `write` writes it.

        `adapt` may change the request once the model is known.
        """
        async with self.encoding(request.model, request.model_version, call, wanted, request.timeout_s) as served:
            adapt(served.manifest)
            head = read_head(request.output, served.manifest)
            assert head is not None
            form = ReplyForm(answer_bytes, lambda reply: write(classify_response(reply, head)))
            return await self.encode(request, served, call, reserve_nothing, form)

    async def tokenize(
        self, request: pb.EncodeRequest, call: Call, write: Callable[[pb.TokenizeResponse], bytes], *, strings: bool
    ) -> bytes:
        """Return the tokens of the texts or pairs of a request as `write` writes them; queue nothing.

        The reply has offsets if the request asks for them, and the tokens as the vocabulary writes them with `strings`.
        """
        with await self.used(request.model, request.model_version, call, TOKENIZES) as served, self.counted():
            tokenizer = served.tokenizer
            assert tokenizer is not None
            check_tokenize_request(request, served.manifest)
            parsed = await self.read_input(request, served, call, _room_for_all, Truncation.NONE)
            call.truncated = parsed.truncated.keys()

            def respond() -> bytes:
                sequences = map(without_types, parsed.sequences) if strings else ()
                words = [word for ids in sequences for word in tokenizer.token_strings(ids)]
                return write(tokenize_response(parsed, words, model_ref(served.facts), call.request_id))

            return await self._reply_of_tokens(respond, parsed, call)

    async def decode(
        self, request: pb.EncodeRequest, call: Call, write: Callable[[list[str]], bytes], *, skip_special_tokens: bool
    ) -> bytes:
        """Return the texts of the token ids of a request as `write` writes them; queue nothing."""
        with await self.used(request.model, request.model_version, call, TOKENIZES) as served, self.counted():
            tokenizer = served.tokenizer
            assert tokenizer is not None
            parsed = await self.read_input(request, served, call, _room_for_all, Truncation.NONE)
            ids = [without_types(each) for each in parsed.sequences]

            def respond() -> bytes:
                return write(tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))

            return await self._reply_of_tokens(respond, parsed, call)

    async def _reply_of_tokens(self, respond: Callable[[], bytes], parsed: ParsedInput, call: Call) -> bytes:
        if sum(map(len, parsed.sequences)) > _LARGE_REPLY_TOKENS:
            reply = await self.replying.run(respond, Priority.INTERACTIVE, call.holder)
        else:
            reply = respond()
        self.hold_reply(call, len(reply))
        return reply

    async def read_input(
        self,
        request: pb.EncodeRequest | pb.AttendRequest,
        served: ServedModel,
        call: Call,
        check_room: CheckRoom,
        default_truncation: Truncation = Truncation.ERROR,
    ) -> ParsedInput:
        """Return the sequences of a request; see `requests.inputs.read_input`."""
        failures = Failures(keep=isinstance(request, pb.EncodeRequest) and request.partial)
        for error in call.broken_texts:
            failures.add(error)
        return await read_input(
            request,
            failures,
            served.manifest,
            served.tokenizer,
            self.limits,
            self._readers,
            call.holder,
            check_room,
            default_truncation,
        )


def adopt_id(call: Call, request_id: str) -> None:
    """Use the id of a request for its call, if the request has an id."""
    check_id(request_id)
    call.request_id = request_id or call.request_id


async def reserve_nothing(_: int) -> None:
    """Reserve no bytes, because a unary call has only one answer."""


async def _room_for_all(_: int) -> None:
    """Accept any number of tokens, because nothing waits in a queue."""


def _job(request: pb.EncodeRequest, parsed: ParsedInput, output: WantedOutput, call: Call, deadline_s: float) -> Job:
    """Return what a request asks of its model; note its size in the span of the request."""
    if (span := call.span) is not None:
        tokens = sum(map(len, parsed.sequences))
        span.note_input(tokens, len(parsed.sequences), embeds=output.pooled or output.hidden)
    return Job(
        parsed.sequences,
        hidden=output.needs_rows(parsed.skipped_tokens),
        deadline_s=deadline_s,
        priority=priority_of(request),
        failures=parsed.failures.by_sequence if request.partial else None,
        device_failures=call.device_failures,
        calls=max(1, min(request.calls, len(parsed.sequences))),
        trace=b"" if span is None else span.ids,
        tenant=call.tenant,
    )


def _is_large(parsed: ParsedInput, output: WantedOutput, outcome: Outcome, reply_bytes: int) -> bool:
    """Return whether writing the reply takes long."""
    per_token = outcome.hidden is not None or parsed.offsets is not None or output.unweighted_ids is not None
    many_tokens = sum(map(len, parsed.sequences)) > _LARGE_REPLY_TOKENS
    many_sequences = len(parsed.sequences) > _LARGE_REPLY_SEQUENCES
    return (per_token and many_tokens) or many_sequences or reply_bytes > _LARGE_REPLY_BYTES


def _respond(
    call: Call,
    parsed: ParsedInput,
    output: WantedOutput,
    admitted_s: float,
    outcome: Outcome,
    served: ServedModel,
    form: ReplyForm[_Reply],
) -> _Reply:
    completed_s = outcome.completed_s(clock())
    reply = encode_reply(call.request_id, parsed, output, outcome, served)
    set_timings(reply.timings, call, admitted_s, outcome.batches, completed_s)
    served.recorder.stages(reply.timings)
    return form.write(reply)


def _deadline_exceeded(request: pb.EncodeRequest) -> DeadlineExceeded:
    if not request.timeout_s:
        return DeadlineExceeded("the answer was ready only after the deadline of the call: allow more time")
    return DeadlineExceeded(
        f"the answer was not ready within the request's timeout_s of {request.timeout_s:g} s: allow more time"
    )
