"""The errors of requests: one tree for the server, which sends them, and for the client, which raises them.

HeadwaiterError
├── InvalidInput
│   └── SequenceTooLong
├── ModelNotFound
├── MessageTooLarge
├── DeadlineExceeded
├── Cancelled
├── Transient
│   ├── Overloaded
│   └── Unavailable
│       ├── Starting
│       └── DeviceFailed
├── InferenceFailed
├── Unauthenticated
└── Unimplemented
"""

from typing import Any, ClassVar

from headwaiter_proto import encoder_pb2 as pb

# Maximum characters of a caller's text that an error quotes: an error is sent in HTTP/2 headers of at most 8 KiB.
MAX_QUOTED_CHARACTERS = 256


class HeadwaiterError(Exception):
    """A request failed; the message says what is wrong, where, and what to do.

    The client raises this class itself for a failure without a class of its own.

    Args:
        problem: what is wrong and what to do, "the queue is full: try again". If `sequence` is set, the message begins
            with the sequence, and the problem follows: "has 65 tokens; the model accepts at most 64: shorten it".

    Attributes:
        sequence: index of the wrong sequence, on a server in the request and in the client in the caller's list; None
            if the error is not about one sequence.
        field: path of the wrong field in the request.
        limit: the limit that was exceeded.
        actual: the value that exceeded the limit.
        retry_after_s: seconds after which the same request may succeed; None if unknown.
        request_id: the request's id in the server's log.
        finished: in the client, the result of a `partial` list of which some requests were answered before this error:
            an `Encoding` or a `Classification`, whose `failures` name the sequences without an answer; else None.
    """

    reason: ClassVar[pb.ErrorReason] = pb.ERROR_REASON_UNSPECIFIED
    finished: Any = None

    def __init__(
        self,
        problem: str,
        *,
        sequence: int | None = None,
        field: str | None = None,
        limit: int | None = None,
        actual: int | None = None,
        retry_after_s: float | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(problem)
        self.sequence = sequence
        self.field = field
        self.limit = limit
        self.actual = actual
        self.retry_after_s = retry_after_s
        self.request_id = request_id

    @property
    def problem(self) -> str:
        """The message without the sequence at its beginning."""
        problem: str = self.args[0]
        return problem

    def __str__(self) -> str:
        return self.problem if self.sequence is None else f"sequence {self.sequence} {self.problem}"

    def __repr__(self) -> str:
        known = "".join(f", {name}={value!r}" for name, value in vars(self).items() if value is not None)
        return f"{type(self).__name__}({str(self)!r}{known})"


class InvalidInput(HeadwaiterError):
    """The request is wrong: the same request will fail again."""

    reason = pb.INVALID_INPUT


class SequenceTooLong(InvalidInput):
    """A sequence has more tokens than the model accepts."""

    reason = pb.SEQUENCE_TOO_LONG


class ModelNotFound(HeadwaiterError):
    """The server has no model of this name."""

    reason = pb.MODEL_NOT_FOUND


class MessageTooLarge(HeadwaiterError):
    """The request or the reply exceeds a size limit: the same request will fail again."""

    reason = pb.MESSAGE_TOO_LARGE


class DeadlineExceeded(HeadwaiterError):
    """The deadline passed before the answer was ready."""

    reason = pb.DEADLINE_EXCEEDED


class Cancelled(HeadwaiterError):
    """The caller cancelled the call, or closed its client, before the answer came."""

    reason = pb.CANCELLED


class Transient(HeadwaiterError):
    """The same request may succeed later, or on another replica."""


class Overloaded(Transient):
    """The queue is full, or too long for the deadline; the same request may succeed after `retry_after_s`."""

    reason = pb.OVERLOADED


class Unavailable(Transient):
    """The server cannot be reached, is starting, or is shutting down; another replica may answer."""

    reason = pb.UNAVAILABLE


class Starting(Unavailable):
    """The server is starting, or it is loading the model; the same request may succeed after `retry_after_s`."""

    reason = pb.STARTING


class DeviceFailed(Unavailable):
    """The device failed while it ran the request; another replica may answer."""

    reason = pb.DEVICE_FAILED


class InferenceFailed(HeadwaiterError):
    """The model failed on this input, devices failed on this input, or a part of the model cannot be loaded."""

    reason = pb.INFERENCE_FAILED


class Unauthenticated(HeadwaiterError):
    """The call has no bearer token, or a wrong one."""

    reason = pb.UNAUTHENTICATED


class Unimplemented(HeadwaiterError):
    """The server does not offer the method."""

    reason = pb.UNIMPLEMENTED


# The class of each reason, by the reason's name in encoder.proto.
ERROR_BY_REASON: dict[str, type[HeadwaiterError]] = {
    pb.ErrorReason.Name(kind.reason): kind
    for kind in (
        InvalidInput,
        SequenceTooLong,
        ModelNotFound,
        Overloaded,
        MessageTooLarge,
        DeadlineExceeded,
        Cancelled,
        Unavailable,
        Starting,
        DeviceFailed,
        InferenceFailed,
        Unauthenticated,
        Unimplemented,
    )
}


def without_frames(error: BaseException) -> None:
    """Drop the traceback of an error that has been reported, and the errors that it came from.

    The frames of a traceback hold the request. They often refer to the error too, and then only the garbage collector
    would free the request.
    """
    error.__traceback__ = error.__cause__ = error.__context__ = None


class Failures:
    """The failed sequences of a request.

    Attributes:
        keep: True for a partial request, which keeps errors; other requests raise the first error.
        by_sequence: the first error of each failed sequence, by the sequence's index.
    """

    def __init__(self, *, keep: bool = False) -> None:
        self.keep = keep
        self.by_sequence: dict[int, HeadwaiterError] = {}

    def add(self, error: HeadwaiterError) -> None:
        """Keep the error of a sequence, unless an error of this sequence is already kept.

        Raises:
            HeadwaiterError: the error itself, if errors are not kept.
        """
        assert error.sequence is not None
        if not self.keep:
            raise error
        # An error in one of its own frames is freed only by the garbage collector, with the request.
        error.__traceback__ = error.__context__ = None
        self.by_sequence.setdefault(error.sequence, error)

    def __contains__(self, sequence: int) -> bool:
        return sequence in self.by_sequence
