"""A request that is being answered, and the record of its outcome: log lines and metrics."""

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from grpc import StatusCode

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import (
    MAX_QUOTED_CHARACTERS,
    DeadlineExceeded,
    HeadwaiterError,
    InvalidInput,
    ModelNotFound,
    Overloaded,
    Unauthenticated,
    Unavailable,
    Unimplemented,
    without_frames,
)
from headwaiter_proto.rules.status import code_of
from headwaiter_server.log_lines import FEW_LINES_PER_S, line_kind
from headwaiter_server.metrics.recorder import Recorder
from headwaiter_server.runtime.errors import one_line
from headwaiter_server.scheduling.request_errors import is_late
from headwaiter_server.settings.tenants import UNNAMED, Tenant

if TYPE_CHECKING:
    from headwaiter_server.tracing.spans import RequestSpan

log = logging.getLogger(__name__)

clock = time.monotonic

# One random number per process, because a random number per request would cost a system call per request.
_PROCESS_ID, _REQUEST_NUMBERS = uuid.uuid4().hex[:16], count(1)
# These end a task on purpose. All other exceptions are failures, also those that are no Exception: a panic of the
# tokenizer's Rust code is a BaseException.
NO_FAILURES = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit)
# A header of W3C Trace Context: version, trace, parent, flags; later versions may append more.
_TRACEPARENT = re.compile("(?!ff|00.{54})[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
_TRACEPARENT_CHARACTERS = 55
_PLAIN = re.compile(r"[\w.:/@+=#\[\]-]+", re.ASCII)


@dataclass(eq=False, slots=True)
class Call:
    """A request that is being answered.

    Attributes:
        method: name of the method, for logs and metrics.
        arrived_s: time of arrival, on `clock`.
        deadline_s: deadline of the call, on `clock`; infinity without a deadline.
        connection: names the connection of the call: gRPC's name of the peer, or the caller's host over HTTP; empty if
            the call ended before the server began it, because gRPC then no longer knows the peer.
        device_failures: how often the caller's earlier attempts failed because a device died.
        tenant: the tenant whose token the caller sent.
        traceparent: the header of W3C Trace Context that the caller sent, unchecked; empty if the caller sent none.
        http_status: returns the status of an error over HTTP; None for a call over gRPC.
        span: the span of the request; None without traces, and if the request is not sampled.
        started_s: when the server started to read the request, on `clock`; after the arrival if it had to wait.
        queued: whether the request has entered a queue; an error after that is no refusal.
        model: name and version of the model; empty strings until the model is found.
        request_id: the id in the request; a generated id until the request is parsed, and for a request without an id.
        request_bytes: size of the request.
        reply_bytes: bytes that are reserved for the reply.
        broken_texts: the errors of the texts of the request that are not UTF-8; other texts stand in their places.
        truncated: the indices of the truncated texts, in rising order; empty before the texts are tokenised.
        stages: the seconds of each stage; None before the reply is ready, and for methods without stages.
        held: gives back the call's shares of the server's limits; closed when the reply is sent.
    """

    method: str
    arrived_s: float
    deadline_s: float
    connection: str = ""
    device_failures: int = 0
    tenant: Tenant = UNNAMED
    traceparent: str = ""
    http_status: Callable[[HeadwaiterError], int] | None = None
    span: "RequestSpan | None" = None
    started_s: float = 0.0
    queued: bool = False
    model: tuple[str, str] = ("", "")
    request_id: str = field(default_factory=lambda: f"{_PROCESS_ID}-{next(_REQUEST_NUMBERS)}")
    request_bytes: int = 0
    reply_bytes: int = 0
    broken_texts: Sequence[InvalidInput] = ()
    truncated: Collection[int] = ()
    stages: Mapping[str, float] | None = None
    held: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        self.started_s = self.arrived_s

    def note_queued(self) -> None:
        """Record that the request has entered a queue."""
        self.queued = True

    @property
    def trace_id(self) -> str:
        """The id of the trace that the span or the caller's header names; empty without a span and a valid header."""
        if self.span is not None:
            return self.span.trace_id
        header = _TRACEPARENT.fullmatch(self.traceparent)
        return header[1] if header else ""

    @property
    def holder(self) -> str:
        """The holder of the call's shares of limits: the tenant, or the connection if the caller has no named token."""
        return f"tenant {self.tenant.name}" if self.tenant.name else self.connection

    @property
    def caller(self) -> str:
        """The address of the caller; empty if it is not known."""
        # gRPC writes ipv4:127.0.0.1:50051 and ipv6:%5B::1%5D:50051.
        return unquote(self.connection.removeprefix("ipv4:").removeprefix("ipv6:"))

    def describe(self) -> str:
        """Return the request, its model and its caller in words, for the log."""
        name, version = self.model
        model = f", model {name} version {version}" if name else ""
        address = [f"from {_shown(self.caller)}"] if self.caller else []
        token = [f"with the token of {self.tenant.name}"] if self.tenant.name else []
        caller = f", {' '.join(address + token)}" if address or token else ""
        return f"{self.method} {_shown(self.request_id)}{model}{caller}"

    def log_fields(self, code: StatusCode) -> dict[str, Any]:
        """Return the fields that an object of the log has for a request with this outcome; unknown ones are missing."""
        name, version = self.model
        fields = {
            "request_id": self.request_id,
            "method": self.method,
            "model": name,
            "version": version,
            "caller": self.caller,
            "tenant": self.tenant.name,
            "trace_id": self.trace_id,
            "code": code.name,
            "duration_s": round(clock() - self.arrived_s, 6),
            "stages": {stage: round(duration_s, 6) for stage, duration_s in (self.stages or {}).items()},
        }
        return {key: value for key, value in fields.items() if value not in ("", {})}


def _shown(text: str) -> str:
    """Return a text of the caller so that no other part of a log line looks like the text.

    The address of a caller behind a trusted proxy is the text of a header.
    """
    return text if _PLAIN.fullmatch(text) else repr(text[:MAX_QUOTED_CHARACTERS])


class OutcomeRecorder:
    """Logs and counts the outcome of a request before the caller receives the outcome.

    Every failure leaves the block as a HeadwaiterError; a cancellation leaves the block unchanged.
    """

    def __init__(self, call: Call, recorder: Recorder) -> None:
        self._call = call
        self._recorder = recorder

    def __enter__(self) -> None:
        """Count the arrival of the request."""
        record_arrival(self._call, self._recorder)

    def __exit__(self, _: object, error: BaseException | None, trace: TracebackType | None) -> None:
        """Log and count the outcome.

        Raises:
            HeadwaiterError: replaces an unexpected exception.
        """
        call = self._call
        if error is None:
            _record_end(call, self._recorder, StatusCode.OK)
            # At the level INFO, the log would grow with the traffic.
            if log.isEnabledFor(logging.DEBUG):
                stages = "".join(f", {stage} {1e3 * seconds:.2f} ms" for stage, seconds in (call.stages or {}).items())
                event = f"answered in {1e3 * (clock() - call.arrived_s):.2f} ms{stages}"
                _log(logging.DEBUG, call, StatusCode.OK, event, line_kind(f"{call.method}: OK"))
        elif isinstance(error, asyncio.CancelledError):
            # gRPC cancels the handler both when the caller cancels and when the deadline passes.
            late = is_late(clock(), call.arrived_s, call.deadline_s)
            code = StatusCode.DEADLINE_EXCEEDED if late else StatusCode.CANCELLED
            event = "the deadline passed" if late else "the caller cancelled"
            _log(logging.INFO, call, code, event, line_kind(f"{call.method}: {event}"))
            _record_end(call, self._recorder, code)
        elif not isinstance(error, NO_FAILURES):
            reported = record_failure(call, error, self._recorder)
            if reported is not error:
                raise reported from None


def record_arrival(call: Call, recorder: Recorder) -> None:
    """Count the arrival of a request, and begin the span of the request."""
    recorder.received()
    if recorder.tracing is not None:
        # Later versions of the header may append more to the fields of the first version.
        traceparent = call.traceparent[:_TRACEPARENT_CHARACTERS] if _TRACEPARENT.fullmatch(call.traceparent) else ""
        call.span = recorder.tracing.start_request(call.method, traceparent, call.arrived_s)


def record_failure(call: Call, error: BaseException, recorder: Recorder) -> HeadwaiterError:
    """Log and count a failure, and return the error to report to the caller."""
    if isinstance(error, HeadwaiterError):
        reported = error
        name = type(error).__name__
        refused = isinstance(error, Overloaded | Unavailable | Unauthenticated)
        kind = line_kind(f"{call.method}: {name}", lines_per_s=1 if refused else FEW_LINES_PER_S)
        _log(_log_level(error), call, code_of(error), f"{name}: {_with_cause(error)}", kind)
        if not call.queued and not isinstance(error, DeadlineExceeded):
            recorder.refused(pb.ErrorReason.Name(error.reason), call.tenant.name)
    else:
        reported = HeadwaiterError("the server failed unexpectedly: look for the request's id in the server's log")
        kind = line_kind(f"{call.method}: unexpected failure, {type(error).__name__}")
        _log(logging.ERROR, call, code_of(reported), "unexpected failure", kind, error)
    _record_end(call, recorder, code_of(reported), reported)
    without_frames(error)
    return reported


def _record_end(call: Call, recorder: Recorder, code: StatusCode, error: HeadwaiterError | None = None) -> None:
    """Count and time a request that has its outcome, and end the span of the request."""
    duration_s, exemplar = clock() - call.arrived_s, None
    if call.span is not None:
        exemplar = call.span.exemplar
        _end_span(call.span, call, code, error, call.arrived_s + duration_s)
    recorder.finished(call.model, call.method, code.name, duration_s, exemplar, call.tenant.name)


def _end_span(span: "RequestSpan", call: Call, code: StatusCode, error: HeadwaiterError | None, end_s: float) -> None:
    name, version = call.model
    attributes = {"headwaiter.request.id": call.request_id}
    if name:
        attributes |= {"gen_ai.request.model": name, "gen_ai.response.model": name, "headwaiter.model.version": version}
    if error is not None:
        attributes["headwaiter.error.reason"] = pb.ErrorReason.Name(error.reason)
    status: str | int | None = code.name
    if call.http_status is not None:
        # A caller that has gone gets no status.
        answered = 200 if code is StatusCode.OK else None
        status = answered if error is None else call.http_status(error)
    span.end(end_s, status, attributes, str(error or ""))


def log_failures(call: Call, failures: Mapping[int, HeadwaiterError]) -> None:
    """Log the failed sequences of a partial request in a single line, because there may be thousands."""
    if failures:
        _, first = min(failures.items())
        message = f"{len(failures)} sequences failed, the first: {_with_cause(first)}"
        level = max(map(_log_level, failures.values()))
        kind = line_kind(f"{call.method}: failed sequences, {type(first).__name__}")
        _log(level, call, code_of(first), f"{type(first).__name__}: {message}", kind)


def _log(
    level: int,
    call: Call,
    code: StatusCode,
    event: str,
    kind: Mapping[str, object],
    error: BaseException | None = None,
) -> None:
    """Log an event of a request, with its model and its caller."""
    if log.isEnabledFor(level):
        extra = {**kind, "request": call.log_fields(code)}
        log.log(level, "%s: %s", call.describe(), event, exc_info=error, extra=extra)


def _log_level(error: HeadwaiterError) -> int:
    """Return the log level of an error: INFO for mistakes of the caller, WARNING for all other errors."""
    return logging.INFO if isinstance(error, InvalidInput | ModelNotFound | Unimplemented) else logging.WARNING


def _with_cause(error: HeadwaiterError) -> str:
    """Return an error's message and its cause in one line; callers do not see the cause."""
    cause = one_line(error.__cause__)
    return f"{error} ({cause})" if error.__cause__ else str(error)
