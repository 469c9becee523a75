"""The messages between the engine's process and a front end's process. Pure functions.

A message is a header and a payload. Token ids, features, vectors and rows are raw bytes. What is rare, control and
errors for example, is pickled around these bytes: both processes are the same program, and no third one can write to
their socket.
"""

import pickle
import struct
from collections.abc import Sequence
from dataclasses import replace
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto.rules.errors import HeadwaiterError
from headwaiter_proto.rules.sparse import ENTRY
from headwaiter_server.runtime.errors import one_line
from headwaiter_server.scheduling.fair_start import Priority
from headwaiter_server.scheduling.job import BatchTimes, Interval, Job, Outcome
from headwaiter_server.settings.tenants import UNNAMED, Tenant

# Length of the payload in bytes, kind, number of the request or the call.
HEADER = struct.Struct("<IBQ")
# Model, flags, priority, device failures of the caller, calls that share the request, deadline, type of the values,
# their width, sequences, failed sequences.
_REQUEST = struct.Struct("<IBBBIdBIII")
# Vectors, their width, batches.
_VECTORS = struct.Struct("<III")
# Length of a tenant's name, and the numbers of the tenant.
_TENANT = struct.Struct("<Bddd")
_HIDDEN, _PARTIAL, _TRACED, _OF_TENANT = 1, 2, 4, 8
# The ids of a trace and of a span.
_SPAN_IDS_BYTES = 24
_DTYPES: tuple[np.dtype[Any], ...] = tuple(map(np.dtype, ("<i4", "<i8", "<f4", "<f2", "<f8")))
_CODES = {dtype: code for code, dtype in enumerate(_DTYPES)}
# Stands for the errors of sequences that failed in the front end, which knows them.
_FAILED_BEFORE = HeadwaiterError("the sequence failed before it was queued")
_Array = NDArray[np.generic]


class Kind(IntEnum):
    """What a message is."""

    REQUEST = 0
    VECTORS = 1
    CALL = 2
    CANCEL = 3
    RETURNED = 4
    RAISED = 5
    # An error of a request that was not queued.
    REFUSED = 6


def write_request(model: int, job: Job) -> list[bytes]:
    """Return the parts of the payload of a job for the model with this number; errors of sequences do not cross."""
    values, hidden, deadline_s, priority, failures, device_failures, calls, trace, tenant = job
    if failures:
        values = [each[:0] if index in failures else each for index, each in enumerate(values)]
    first = next((each for each in values if len(each)), values[0])
    flags = (
        _HIDDEN * hidden + _PARTIAL * (failures is not None) + _TRACED * bool(trace) + _OF_TENANT * bool(tenant.name)
    )
    failed = failures or ()
    width = first.shape[1] if first.ndim == 2 else 0
    head = _REQUEST.pack(
        model,
        flags,
        priority,
        device_failures,
        calls,
        deadline_s,
        _CODES[first.dtype],
        width,
        len(values),
        len(failed),
    )
    counts = struct.pack(f"<{len(values) + len(failed)}I", *map(len, values), *failed)
    named = [_TENANT.pack(len(tenant.name), *tenant[1:]), tenant.name.encode("ascii")] if tenant.name else []
    return [head, counts, trace, *named, *(each.tobytes() for each in values if len(each))]


def read_request(payload: bytes) -> tuple[int, Job]:
    """Return the number of a model, and a job; the values of the job share the memory of the payload."""
    model, flags, priority, device_failures, calls, deadline_s, code, width, count, failed_count = _REQUEST.unpack_from(
        payload
    )
    counts = struct.unpack_from(f"<{count + failed_count}I", payload, _REQUEST.size)
    start = _REQUEST.size + 4 * len(counts)
    trace = payload[start : start + _SPAN_IDS_BYTES] if flags & _TRACED else b""
    start += len(trace)
    tenant = UNNAMED
    if flags & _OF_TENANT:
        length, share, tokens_per_s, queue_tokens = _TENANT.unpack_from(payload, start)
        start += _TENANT.size + length
        tenant = Tenant(payload[start - length : start].decode("ascii"), share, tokens_per_s, queue_tokens)
    values = _split(np.frombuffer(payload, _DTYPES[code], offset=start), counts[:count], width)
    failures = dict.fromkeys(counts[count:], _FAILED_BEFORE) if flags & _PARTIAL else None
    hidden = bool(flags & _HIDDEN)
    return model, Job(values, hidden, deadline_s, Priority(priority), failures, device_failures, calls, trace, tenant)


def write_outcome(outcome: Outcome, *, sampled: bool) -> tuple[Kind, list[Any]]:
    """Return the kind and the parts of the payload of an outcome.

    Only a sampled request needs the ids of the spans of its batches, which VECTORS has no room for. The vectors of
    VECTORS have one width.
    """
    pooled, has_rows = outcome.pooled, outcome.hidden is not None or outcome.logits is not None
    if pooled is None or has_rows or outcome.failures or sampled or pooled[0].dtype == ENTRY:
        return Kind.RETURNED, write_objects(replace(outcome, batches=tuple(outcome.batches)))
    times = [time for batch in outcome.batches for time in (*batch.packing, *batch.run)]
    head = _VECTORS.pack(len(pooled), pooled[0].shape[0], len(outcome.batches))
    return Kind.VECTORS, [head, struct.pack(f"<{len(times)}d", *times), *(each.tobytes() for each in pooled)]


def read_vectors(payload: bytes) -> Outcome:
    """Return an outcome of vectors only, which share the memory of the payload."""
    count, width, batches = _VECTORS.unpack_from(payload)
    times = struct.unpack_from(f"<{4 * batches}d", payload, _VECTORS.size)
    vectors = np.frombuffer(payload, "<f4", count * width, _VECTORS.size + 8 * len(times)).reshape(count, width)
    ran = [
        BatchTimes(Interval(*times[at : at + 2]), Interval(*times[at + 2 : at + 4])) for at in range(0, len(times), 4)
    ]
    return Outcome(list(vectors), None, ran)


def write_objects(*objects: Any) -> list[Any]:
    """Return the parts of the payload of a call or a return; the bytes of arrays are not pickled."""
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(objects, protocol=5, buffer_callback=buffers.append)
    raw = [buffer.raw() for buffer in buffers]
    sizes = [len(pickled), *(each.nbytes for each in raw)]
    return [struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes), pickled, *raw]


def read_objects(payload: bytes) -> Any:
    """Return the objects of a call or a return; arrays share the memory of the payload."""
    (count,) = struct.unpack_from("<I", payload)
    sizes = struct.unpack_from(f"<{count}Q", payload, 4)
    view, place, parts = memoryview(payload), 4 + 8 * count, []
    for size in sizes:
        parts.append(view[place : place + size])
        place += size
    return pickle.loads(parts[0], buffers=parts[1:])  # noqa: S301 - no other program writes to the socket


def write_error(error: BaseException) -> list[Any]:
    """Return the parts of the payload of an error."""
    return write_objects(error, one_line(error.__cause__) if error.__cause__ else "")


def read_error(payload: bytes) -> BaseException:
    """Return an error; of its cause, only the text has crossed."""
    error, cause = read_objects(payload)
    if cause:
        error.__cause__ = RuntimeError(cause)
    assert isinstance(error, BaseException)
    return error


def _split(values: _Array, lengths: Sequence[int], width: int) -> list[_Array]:
    """Return the parts of these lengths; rows of `width` values, or single values if `width` is 0."""
    parts, start = [], 0
    for length in lengths:
        end = start + length * (width or 1)
        part = values[start:end]
        parts.append(part.reshape(length, width) if width else part)
        start = end
    return parts


def split_messages(received: bytes) -> tuple[list[tuple[Kind, int, bytes]], bytes]:
    """Return the kind, the number and the payload of each complete message, and the bytes that are left."""
    messages, place = [], 0
    while len(received) - place >= HEADER.size:
        length, kind, number = HEADER.unpack_from(received, place)
        start = place + HEADER.size
        if start + length > len(received):
            break
        place = start + length
        messages.append((Kind(kind), number, received[start:place]))
    return messages, received[place:]


def missing_bytes(incomplete: bytes) -> int:
    """Return the least number of bytes that the message which begins with these bytes still lacks."""
    if len(incomplete) < HEADER.size:
        return HEADER.size - len(incomplete)
    length, _, _ = HEADER.unpack_from(incomplete)
    return HEADER.size + int(length) - len(incomplete)
