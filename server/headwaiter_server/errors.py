"""What can go wrong with a request, as a tree; `rpc.status` gives each its gRPC code.

HeadwaiterError
├── InvalidInput
│   └── SequenceTooLong
├── ModelNotFound
├── Overloaded
├── DeadlineExceeded
├── Cancelled
├── Unavailable
├── InferenceFailed
├── Unauthenticated
└── Unimplemented
"""

from typing import ClassVar

from headwaiter_proto import encoder_pb2 as pb


class HeadwaiterError(Exception):
    """A request failed; the message says what was wrong, where, and what would be right.

    Attributes:
        sequence: index of the sequence in the request, where one is to blame.
        field: path of the request's field, where one is to blame.
        limit: the limit that was exceeded.
        actual: what was found instead.
    """

    reason: ClassVar[pb.ErrorReason] = pb.ERROR_REASON_UNSPECIFIED

    def __init__(
        self,
        message: str,
        *,
        sequence: int | None = None,
        field: str | None = None,
        limit: int | None = None,
        actual: int | None = None,
    ) -> None:
        super().__init__(message)
        self.sequence = sequence
        self.field = field
        self.limit = limit
        self.actual = actual


class InvalidInput(HeadwaiterError):
    """The request cannot be served as it is."""

    reason = pb.INVALID_INPUT


class SequenceTooLong(InvalidInput):
    """A sequence has more tokens than the model takes."""

    reason = pb.SEQUENCE_TOO_LONG


class ModelNotFound(HeadwaiterError):
    """The server holds no model of that name."""

    reason = pb.MODEL_NOT_FOUND


class Overloaded(HeadwaiterError):
    """The queue is full.

    Attributes:
        retry_after_s: when the queue is expected to have drained.
    """

    reason = pb.OVERLOADED

    def __init__(self, message: str, *, retry_after_s: float, limit: int | None = None) -> None:
        super().__init__(message, limit=limit)
        self.retry_after_s = retry_after_s


class DeadlineExceeded(HeadwaiterError):
    """The deadline passed before the answer was ready."""

    reason = pb.DEADLINE_EXCEEDED


class Cancelled(HeadwaiterError):
    """The caller went away."""

    reason = pb.CANCELLED


class Unavailable(HeadwaiterError):
    """The server is starting or draining."""

    reason = pb.UNAVAILABLE


class InferenceFailed(HeadwaiterError):
    """The model failed on this input."""

    reason = pb.INFERENCE_FAILED


class Unauthenticated(HeadwaiterError):
    """The call carries no bearer token, or a wrong one."""

    reason = pb.UNAUTHENTICATED


class Unimplemented(HeadwaiterError):
    """This server does not offer the method."""

    reason = pb.UNIMPLEMENTED


class Failures:
    """Errors of single sequences of a request: the first is raised, unless the others shall be answered all the same.

    Attributes:
        by_sequence: the errors that were kept, by the index of their sequence.
    """

    def __init__(self, *, keep: bool = False) -> None:
        self.keep = keep
        self.by_sequence: dict[int, HeadwaiterError] = {}

    def add(self, error: HeadwaiterError) -> None:
        """Note what is wrong with a sequence; of several things, the first.

        Raises:
            HeadwaiterError: the error itself, unless errors are kept.
        """
        assert error.sequence is not None
        if not self.keep:
            raise error
        self.by_sequence.setdefault(error.sequence, error)

    def __contains__(self, sequence: int) -> bool:
        return sequence in self.by_sequence
