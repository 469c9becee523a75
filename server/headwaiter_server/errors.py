"""The errors of requests, under the server's name."""

from headwaiter_proto.rules.errors import (
    Cancelled,
    DeadlineExceeded,
    Failures,
    HeadwaiterError,
    InferenceFailed,
    InvalidInput,
    ModelNotFound,
    Overloaded,
    SequenceTooLong,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)

__all__ = [
    "Cancelled",
    "DeadlineExceeded",
    "Failures",
    "HeadwaiterError",
    "InferenceFailed",
    "InvalidInput",
    "ModelNotFound",
    "Overloaded",
    "SequenceTooLong",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
]
