"""The errors that calls raise.

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
├── InferenceFailed
├── Unauthenticated
├── Unimplemented
└── ModelChanged
"""

import re
from copy import copy

from headwaiter_proto.rules.errors import (
    ERROR_BY_REASON,
    Cancelled,
    DeadlineExceeded,
    HeadwaiterError,
    InferenceFailed,
    InvalidInput,
    MessageTooLarge,
    ModelNotFound,
    Overloaded,
    SequenceTooLong,
    Transient,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)

__all__ = [
    "ERROR_BY_REASON",
    "Cancelled",
    "DeadlineExceeded",
    "HeadwaiterError",
    "InferenceFailed",
    "InvalidInput",
    "MessageTooLarge",
    "ModelChanged",
    "ModelNotFound",
    "Overloaded",
    "SequenceTooLong",
    "Transient",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "renumbered",
]

# Tracebacks show the path from which users import the classes.
for _kind in (HeadwaiterError, Transient, *ERROR_BY_REASON.values()):
    _kind.__module__ = __name__


class ModelChanged(HeadwaiterError):
    """The requests of one call were answered by different weights, whose vectors cannot be compared."""


def renumbered(error: HeadwaiterError, first: int) -> HeadwaiterError:
    """Return an error whose `sequence` and message count in the caller's list.

    Args:
        error: the error of a request, which counts sequences in the request.
        first: index in the caller's list of the request's first sequence.
    """
    if error.sequence is None or not first:
        return error
    moved = copy(error)
    moved.sequence = error.sequence + first
    place = rf"(texts\.values\[|\bsequence )({error.sequence})(?!\d)"
    moved.args = (re.sub(place, lambda found: f"{found[1]}{moved.sequence}", str(error)),)
    return moved
