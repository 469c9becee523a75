"""A request that is being answered, and the record of its outcome: log lines and metrics."""

import asyncio
import logging
import time
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from types import TracebackType

from grpc import StatusCode

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import (
    DeadlineExceeded,
    HeadwaiterError,
    InvalidInput,
    ModelNotFound,
    Overloaded,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)
from headwaiter_proto.rules.status import code_of
from headwaiter_server.log_lines import FEW_LINES_PER_S, line_kind
from headwaiter_server.metrics.recorder import Recorder
from headwaiter_server.runtime.errors import one_line

log = logging.getLogger(__name__)

clock = time.monotonic

# One random number per process, because a random number per request would cost a system call per request.
_PROCESS_ID, _REQUEST_NUMBERS = uuid.uuid4().hex[:16], count(1)
# These end a task on purpose. All other exceptions are failures, also those that are no Exception: a panic of the
# tokenizer's Rust code is a BaseException.
NO_FAILURES = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit)


@dataclass(eq=False, slots=True)
class Call:
    """A request that is being answered.

    Attributes:
        method: name of the method, for logs and metrics.
        arrived_s: time of arrival, on `clock`.
        deadline_s: deadline of the call, on `clock`; infinity without a deadline.
        connection: names the connection of the call.
        device_failures: how often the caller's earlier attempts failed because a device died.
        started_s: when the server started to read the request, on `clock`; after the arrival if it had to wait.
        queued: whether the request has entered a queue; an error after that is no refusal.
        model: name and version of the model; empty strings until the model is found.
        request_id: the id in the request; a generated id until the request is parsed, and for a request without an id.
        reply_bytes: bytes that are reserved for the reply.
        held: gives back the call's shares of the server's limits; closed when the reply is sent.
    """

    method: str
    arrived_s: float
    deadline_s: float
    connection: str = ""
    device_failures: int = 0
    started_s: float = 0.0
    queued: bool = False
    model: tuple[str, str] = ("", "")
    request_id: str = field(default_factory=lambda: f"{_PROCESS_ID}-{next(_REQUEST_NUMBERS)}")
    reply_bytes: int = 0
    held: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        self.started_s = self.arrived_s

    def note_queued(self) -> None:
        """Record that the request has entered a queue."""
        self.queued = True


class OutcomeRecorder:
    """Logs and counts the outcome of a request before the caller receives the outcome.

    Every failure leaves the block as a HeadwaiterError; a cancellation leaves the block unchanged.
    """

    def __init__(self, call: Call, recorder: Recorder) -> None:
        self._call = call
        self._recorder = recorder

    def __enter__(self) -> None:
        """Count the arrival of the request."""
        self._recorder.received()

    def __exit__(self, _: object, error: BaseException | None, trace: TracebackType | None) -> None:
        """Log and count the outcome.

        Raises:
            HeadwaiterError: replaces an unexpected exception.
        """
        call = self._call
        if error is None:
            self._recorder.finished(call.model, call.method, StatusCode.OK.name, clock() - call.arrived_s)
        elif isinstance(error, asyncio.CancelledError):
            # gRPC cancels the handler both when the caller cancels and when the deadline passes.
            late = clock() >= call.deadline_s
            code = StatusCode.DEADLINE_EXCEEDED if late else StatusCode.CANCELLED
            event = "the deadline passed" if late else "the caller cancelled"
            log.info("%s %s: %s", call.method, call.request_id, event, extra=line_kind(f"{call.method}: {event}"))
            self._recorder.finished(call.model, call.method, code.name, clock() - call.arrived_s)
        elif not isinstance(error, NO_FAILURES):
            reported = record_failure(call, error, self._recorder)
            if reported is not error:
                raise reported from None


def record_failure(call: Call, error: BaseException, recorder: Recorder) -> HeadwaiterError:
    """Log and count a failure, and return the error to report to the caller."""
    if isinstance(error, HeadwaiterError):
        reported = error
        log.log(
            _log_level(error),
            "%s %s: %s: %s",
            call.method,
            call.request_id,
            type(error).__name__,
            _with_cause(error),
            extra=line_kind(
                f"{call.method}: {type(error).__name__}",
                lines_per_s=1 if isinstance(error, Overloaded | Unavailable | Unauthenticated) else FEW_LINES_PER_S,
            ),
        )
        if not call.queued and not isinstance(error, DeadlineExceeded):
            recorder.refused(pb.ErrorReason.Name(error.reason))
    else:
        reported = HeadwaiterError("the server failed unexpectedly: look for the request's id in the server's log")
        kind = line_kind(f"{call.method}: unexpected failure, {type(error).__name__}")
        log.error("%s %s: unexpected failure", call.method, call.request_id, exc_info=error, extra=kind)
    recorder.finished(call.model, call.method, code_of(reported).name, clock() - call.arrived_s)
    return reported


def log_failures(call: Call, failures: Mapping[int, HeadwaiterError]) -> None:
    """Log the failed sequences of a partial request in a single line, because there may be thousands."""
    if failures:
        _, first = min(failures.items())
        message = f"{len(failures)} sequences failed, the first: {_with_cause(first)}"
        level = max(map(_log_level, failures.values()))
        kind = line_kind(f"{call.method}: failed sequences, {type(first).__name__}")
        log.log(level, "%s %s: %s: %s", call.method, call.request_id, type(first).__name__, message, extra=kind)


def _log_level(error: HeadwaiterError) -> int:
    """Return the log level of an error: INFO for mistakes of the caller, WARNING for all other errors."""
    return logging.INFO if isinstance(error, InvalidInput | ModelNotFound | Unimplemented) else logging.WARNING


def _with_cause(error: HeadwaiterError) -> str:
    """Return an error's message and its cause in one line; callers do not see the cause."""
    cause = one_line(error.__cause__)
    return f"{error} ({cause})" if error.__cause__ else str(error)
