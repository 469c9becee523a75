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
│       ├── Starting
│       └── DeviceFailed
├── InferenceFailed
├── Unauthenticated
├── Unimplemented
├── ModelChanged
└── OutputMissing
"""

from copy import copy

from headwaiter_proto.rules.errors import ERROR_BY_REASON, HeadwaiterError, Transient


class ModelChanged(HeadwaiterError):
    """Different models or precisions answered the requests of one call; their vectors cannot be compared."""


class OutputMissing(HeadwaiterError, AttributeError):
    """A result does not have the output that was read; the message names the option that asks for the output.

    Because this error is an `AttributeError`, `hasattr(result, "hidden")` says whether a result has an output.
    """


def renumbered(error: HeadwaiterError, first: int) -> HeadwaiterError:
    """Return an error whose `sequence` is the sequence's index in the caller's list.

    Args:
        error: the error of a request; its `sequence` is an index in the request.
        first: the index that the request's first sequence has in the caller's list.
    """
    if error.sequence is None or not first:
        return error
    in_list = copy(error)
    in_list.sequence = error.sequence + first
    return in_list


# Tracebacks show the path from which users import the classes.
for _kind in (HeadwaiterError, Transient, ModelChanged, OutputMissing, *ERROR_BY_REASON.values()):
    _kind.__module__ = "headwaiter_client"
