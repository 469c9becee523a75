"""Calls for lists of sequences, without I/O: split a call into requests, send each one, and join the results.

`encode.py`, `classify.py` and `tokenize.py` complete `ListCall` for the methods Encode, Classify and Tokenize.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import suppress
from copy import copy
from typing import Any, ClassVar, Generic, SupportsIndex, TypeVar

from google.protobuf.message import Message

from headwaiter_client.calls import steps
from headwaiter_client.calls.arguments import check_is_list, check_type, checked_timeout_s
from headwaiter_client.calls.input_kinds import InputKind, Request
from headwaiter_client.calls.models import ModelRef
from headwaiter_client.calls.options import DefaultOptions, Defaults, copied, own_id, random_id
from headwaiter_client.calls.progress import progress_function
from headwaiter_client.calls.results import ListResult, failed_part, join_results, part_of, with_failures
from headwaiter_client.calls.splitting import (
    Chunk,
    ChunkLimits,
    SequenceConverter,
    chunk_limits,
    is_request_too_large,
    is_small_list,
    regroup,
    sequence_too_large,
    size_error,
    split_in_half,
)
from headwaiter_client.calls.steps import LONGEST_SLICE_S, Pause, Steps
from headwaiter_client.calls.stream_queue import Sent, StreamQueue
from headwaiter_client.errors import ModelChanged, renumbered
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import DeadlineExceeded, HeadwaiterError, InvalidInput, Overloaded

_Item = TypeVar("_Item")
_Sent = TypeVar("_Sent", bound=Sent)
_Result = TypeVar("_Result", bound=ListResult)


class CallSettings:
    """The settings and the known model descriptions that all calls of one client share.

    Args:
        timeout_s: seconds until the deadline of calls without a timeout of their own.
        max_in_flight: maximum number of requests of one call in flight at once.
        defaults: options of calls that do not set them.

    Attributes:
        defaults: options of calls that do not set them.
        descriptions: the descriptions that the server has sent so far, by the model name and version of the call.

    Raises:
        TypeError: `max_in_flight` is not a whole number, or a default has the wrong type.
        ValueError: `timeout_s` is not a finite number above 0, `max_in_flight` is below 1, or a default cannot be sent.
    """

    def __init__(self, timeout_s: float, max_in_flight: int, defaults: DefaultOptions) -> None:
        check_type("max_in_flight", max_in_flight, SupportsIndex, "a whole number")
        try:
            self._timeout_s = checked_timeout_s(timeout_s)
        except InvalidInput as error:
            raise ValueError(str(error)) from error
        if max_in_flight < 1:
            raise ValueError(f"max_in_flight is {max_in_flight}: pass at least 1")
        self.max_in_flight = max_in_flight
        self.defaults = Defaults(defaults)
        self.descriptions: dict[tuple[str, str], pb.GetModelResponse] = {}

    def timeout_s(self, timeout_s: float | None) -> float:
        """Return the seconds until the deadline of a call: its own timeout, or the client's if that is None.

        Raises:
            InvalidInput: the call's timeout is not a finite number above 0.
        """
        return self._timeout_s if timeout_s is None else checked_timeout_s(timeout_s)


class ListCall(ABC, Generic[_Result]):
    """One call for a list or a stream of sequences, which may take several requests.

    Args:
        settings: the client's settings.
        kind: the kind of input; None takes the kind of the first sequence.
        sequences: the sequences as the caller passed them.
        options: the options of the call that the caller set.
        accepts_async: whether the sequences may be an async iterable.

    Raises:
        TypeError: an argument has the wrong type.
        InvalidInput: `sequences` is not a list, or an option has a value that cannot be sent.

    Attributes:
        METHOD: name of the method that answers the requests.
        RESPONSE: class of the method's response.
        OPTIONS: the `TypedDict` of the options.
        IS_STREAM: whether the sequences are a stream, each request of which has the timeout of the call.
    """

    METHOD: ClassVar[str]
    RESPONSE: ClassVar[type[Message]]
    OPTIONS: ClassVar[type]
    IS_STREAM: ClassVar = False

    def __init__(
        self,
        settings: CallSettings,
        kind: InputKind | None,
        sequences: Any,
        options: Mapping[str, Any],
        *,
        accepts_async: bool = False,
    ) -> None:
        check_is_list(sequences, accepts_async=accepts_async)
        self.sequences = sequences
        self._settings = settings
        self._kind = kind
        self._options = settings.defaults.merged(options, self.OPTIONS)
        self._progress = progress_function(options.get("progress"))
        self._timeout_s = settings.timeout_s(options.get("timeout_s"))
        self._has_call_deadline = options.get("timeout_s") is not None and not self.IS_STREAM
        self._template = self._new_template()
        self._own_id = own_id(options)
        self._id = self._own_id or random_id()
        self._deadline_s: float | None = None
        self._models: set[ModelRef] = set()
        self._chunks: list[Chunk] = []
        self._parts: dict[int, _Result] = {}
        self._done = self._total = 0

    @abstractmethod
    def _new_template(self) -> Request:
        """Return the request for the options of the call, without sequences and id; equal options share one object."""

    @abstractmethod
    def _read(self, response: Any, first: int, count: int, round_trip_s: float) -> _Result:
        """Return the result in a response to `count` sequences, of which the first has the index `first`."""

    @property
    def _wants_rows(self) -> bool:
        """Whether a response has a vector for each token."""
        return False

    @property
    def shares_nothing(self) -> bool:
        """Whether the caller would notice that the call shares a request: it has an id, or reports progress."""
        return bool(self._own_id or self._progress)

    def sharing_key(self, chunk: Chunk) -> Hashable:
        """Return what is equal for calls that may share a request."""
        return self.METHOD, id(self._template), chunk.kind.form

    def represent(self, calls: int, deadline_s: float) -> None:
        """Let a copy of one of several calls send the request that they share, until the latest of their deadlines."""
        self._template = copied(self._template)
        self._template.partial = True
        self._template.calls = calls
        self._deadline_s = deadline_s
        self._models = set()

    def begin(self, now_s: float) -> float:
        """Let the timeout of the call begin now, and return the time at which it ends."""
        self._has_call_deadline, self._deadline_s = True, now_s + self._timeout_s
        return self._deadline_s

    def no_answer(self) -> DeadlineExceeded:
        """Return the error of the call if there is no answer in time."""
        return DeadlineExceeded(steps.no_answer(self._timeout_s), request_id=self._id)

    def split(self) -> Steps[list[Chunk]]:
        """Split the list into chunks; ask for the server's limits first if the list is not small.

        Raises:
            InvalidInput: a sequence cannot be sent.
        """
        parts = yield from _in_slices(self._converter().convert_all(self.sequences))
        if not parts:
            raise InvalidInput("the list of sequences is empty: pass at least one sequence")
        if len(parts) > 1 or not is_small_list(parts[0]):
            parts = yield from _in_slices(regroup(parts, (yield from self.limits())))
        self._chunks = parts
        return parts

    def part(self, result: _Result, first: int, count: int) -> Any:
        """Return the result of the call, whose `count` sequences from `first` a request had, perhaps among others."""
        return part_of(result, first, count)

    def send_all(self, chunk: Chunk) -> Steps[Any]:
        """Send all sequences of the call as one chunk, report progress, and return the result of the call."""
        result, count = (yield from self.send(chunk)), len(chunk.sequences)
        if self._progress:
            self._progress(count, count)
        return self.part(result, 0, count)

    def limits(self) -> Steps[ChunkLimits]:
        """Return the limits of a request; ask the server if the model's description is not known yet."""
        return chunk_limits(
            self.known_description or (yield from self.describe()),
            hidden=self._wants_rows,
            timeout_s=self._timeout_s,
            max_in_flight=self._settings.max_in_flight,
        )

    def stream_queue(self, limits: ChunkLimits, send: Callable[[Chunk], _Sent]) -> StreamQueue[_Sent]:
        """Return the queue of a stream; see `StreamQueue` for `send`."""
        ordered = self._options.get("ordered", True)
        return StreamQueue(limits, self._converter(), send, self._settings.max_in_flight, ordered)

    def send(self, chunk: Chunk) -> Steps[_Result]:
        """Send a chunk as one request; if the server refuses the request for its total size, send it in two halves.

        Raises:
            HeadwaiterError: the request failed; `sequence` is an index of the caller's list.
        """
        request = self._request(chunk)
        try:
            if (known := self.known_description) and size_error(request.ByteSize(), known, request.request_id):
                known = yield from self.describe()  # The server may have been restarted with another limit.
                if too_large := size_error(request.ByteSize(), known, request.request_id):
                    raise too_large
            timeout_s = self._remaining_s()
            started_s = time.perf_counter()
            response = yield from steps.call_method(
                self.METHOD, request, self.RESPONSE, timeout_s, request.request_id, self._timeout_s
            )
        except HeadwaiterError as refusal:
            error = yield from self._explained(refusal, request)
            parts = []
            for smaller in self._smaller_chunks(chunk, error, refusal.__cause__):
                part = yield from self.send(smaller)
                parts.append(part)
            return join_results(parts)
        round_trip_s = time.perf_counter() - started_s
        part = self._read(response, chunk.first, len(chunk.sequences), round_trip_s)
        self._check_model(part.model)
        return with_failures(part, chunk.first, chunk.failures) if chunk.failures else part

    def send_part(self, chunk: Chunk) -> Steps[_Result]:
        """Send one of several chunks and keep its result, also if an earlier request of the list fails."""
        part = self._parts[chunk.first] = yield from self.send(chunk)
        return part

    def note_progress(self, part: _Result) -> None:
        """Report the result of the next request of the list."""
        self._done += len(part.lengths)
        if self._progress:
            self._total = self._total or sum(len(chunk.sequences) for chunk in self._chunks)
            self._progress(self._done, self._total)

    def joined(self) -> _Result:
        """Return the result of the list, given the results of all chunks."""
        return join_results([self._parts[chunk.first] for chunk in self._chunks])

    def add_finished(self, error: HeadwaiterError) -> None:
        """Add the results that have arrived to the error that ends a partial call."""
        parts = dict(self._parts)  # A request in flight may still add its result to the other dict.
        if self.is_partial and parts:
            failure = copy(error)
            example = next(iter(parts.values()))
            joined = [
                parts.get(chunk.first) or failed_part(example, chunk.first, len(chunk.sequences), failure)
                for chunk in self._chunks
            ]
            # Results that differ in their outputs cannot be joined; the error of the call is the one to raise.
            with suppress(HeadwaiterError):
                error.finished = join_results(joined)

    @property
    def is_partial(self) -> bool:
        """Whether the caller wants the valid results even if others are missing."""
        return self._template.partial

    def _converter(self) -> SequenceConverter:
        return SequenceConverter(self._kind, partial=self._template.partial)

    def _request(self, chunk: Chunk) -> Request | pb.TokenizeRequest:
        request = copied(self._template)
        if (only_for := request.WhichOneof("input")) not in (None, chunk.kind.name):
            option = "prompt" if only_for == "texts" else "pair_truncation"
            raise InvalidInput(
                f"{option} is set and the sequences are {chunk.kind.name}: use {option} only with {only_for}",
                field=f"{only_for}.{option}",
            )
        request.request_id = f"{self._id}.{chunk.first}" if chunk.first else self._id
        chunk.kind.fill(request, chunk.sequences)
        return request

    def _explained(self, refusal: HeadwaiterError, request: Request | pb.TokenizeRequest) -> Steps[HeadwaiterError]:
        """Return `MessageTooLarge` if a refusal without details has this reason, else the refusal.

        A refusal has no details if a proxy refuses a call, or gRPC a large message.
        """
        if not isinstance(refusal, Overloaded) or refusal.retry_after_s is not None:
            return refusal
        try:
            description = yield from self.describe()
        except HeadwaiterError:
            return refusal
        return size_error(request.ByteSize(), description, request.request_id) or refusal

    def _smaller_chunks(self, chunk: Chunk, error: HeadwaiterError, cause: BaseException | None) -> list[Chunk]:
        """Return the chunks to send in place of a refused chunk.

        Raises:
            HeadwaiterError: the refusal, if smaller chunks cannot help.
        """
        if not is_request_too_large(error):
            raise renumbered(error, chunk.first) from cause
        if len(chunk.sequences) > 1:
            return split_in_half(chunk)
        sequence_error = sequence_too_large(chunk.first, error)
        empty = chunk.kind.empty()
        if self._template.partial and empty is not None and not chunk.failures:
            return [Chunk(chunk.kind, chunk.first, [empty], {chunk.first: sequence_error})]
        raise sequence_error from cause

    @property
    def known_description(self) -> pb.GetModelResponse | None:
        """The description of the model, if the server was asked for it."""
        return self._settings.descriptions.get((self._template.model, self._template.model_version))

    def describe(self) -> Steps[pb.GetModelResponse]:
        """Ask the server for the description of the model."""
        name, version = self._template.model, self._template.model_version
        description = yield from steps.model(name, version, self._remaining_s(), self._timeout_s)
        self._settings.descriptions[name, version] = description
        return description

    def _check_model(self, model: ModelRef) -> None:
        # Several threads may call this at once. Each adds its model before it compares, so the last one sees them all.
        self._models.add(model)
        if not all(model.is_comparable(each) for each in tuple(self._models)):
            raise ModelChanged(
                f"the requests of one call were answered by {' and by '.join(sorted(map(str, self._models)))}, whose "
                "vectors cannot be compared: serve one model in one precision on all replicas, then call again",
                request_id=self._id,
            )

    def _remaining_s(self) -> float:
        """Return the seconds until the deadline of the next request."""
        if not self._has_call_deadline:
            return self._timeout_s
        now_s = time.monotonic()
        if self._deadline_s is None:
            self._deadline_s = now_s + self._timeout_s
            return self._timeout_s
        return self._deadline_s - now_s


def _in_slices(items: Iterable[_Item]) -> Steps[list[_Item]]:
    """Return all items, and let other tasks run now and then."""
    collected = []
    resumed_s = time.monotonic()
    for item in items:
        collected.append(item)
        if time.monotonic() - resumed_s > LONGEST_SLICE_S:
            yield Pause(0.0)
            resumed_s = time.monotonic()
    return collected
