"""The results of calls: read replies, and join the results of several requests."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from itertools import chain
from operator import add
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from headwaiter_client.calls.models import ModelRef, model_ref
from headwaiter_client.calls.tensors import Int8Array, concatenate_int8, read_vectors, split_rows
from headwaiter_client.errors import ERROR_BY_REASON, HeadwaiterError, renumbered
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.status import error_from_metadata

if TYPE_CHECKING:
    from headwaiter_client.calls.classification import Classification

_Item = TypeVar("_Item")
_Part = TypeVar("_Part", bound="Encoding | Classification")


@dataclass(frozen=True)
class Timings:
    """The seconds that each stage of a call took, summed over the requests if a list took several.

    Attributes:
        round_trip_s: from sending the request to receiving the reply, measured by the client.
        tokenize_s: the server parsed, checked and tokenized the request.
        queue_s: the sequences waited for a device.
        assemble_s: the server packed the batch.
        compute_s: the model ran.
        respond_s: the server joined the results and built the reply.
        total_s: the sum of the server's stages; `round_trip_s - total_s` is the time of the network and gRPC.
        batches: number of batches that held sequences of the request.
    """

    round_trip_s: float
    tokenize_s: float
    queue_s: float
    assemble_s: float
    compute_s: float
    respond_s: float
    total_s: float
    batches: int

    def __add__(self, other: "Timings") -> "Timings":
        return Timings(**{name: value + getattr(other, name) for name, value in vars(self).items()})


@dataclass(frozen=True, eq=False)
class SequenceEncoding:
    """The result of one sequence of a stream; the arrays are read-only views of a reply.

    Attributes:
        index: position of the sequence in the stream, from 0.
        float_pooled: [width] the sequence's vector; None if not requested, if the model has no pooling, if the sequence
            failed, or if returned as int8.
        float_hidden: [length, width] one vector per token; None if not requested or failed, or if returned as int8.
        pooled_int8: the vector, if it was requested as int8.
        hidden_int8: the vectors of the tokens, if they were requested as int8.
        length: number of tokens, special tokens included; 0 if the sequence failed.
        offsets: [length, 2] begin and end of each token in the text; None if not requested or failed.
        original_tokens: number of tokens before truncation; None if the sequence was not truncated.
        failure: the error of this sequence in a `partial` call; None if the sequence has a result.
        model: the model that answered.
    """

    index: int
    float_pooled: NDArray[Any] | None = field(repr=False)
    float_hidden: NDArray[Any] | None = field(repr=False)
    pooled_int8: Int8Array | None = field(repr=False)
    hidden_int8: Int8Array | None = field(repr=False)
    length: int
    offsets: NDArray[np.uint32] | None = field(repr=False)
    original_tokens: int | None
    failure: HeadwaiterError | None
    model: ModelRef

    @cached_property
    def pooled(self) -> NDArray[Any] | None:
        """The sequence's vector; one that was returned as int8 is decoded to float32."""
        return self.float_pooled if self.pooled_int8 is None else self.pooled_int8.to_float32()

    @cached_property
    def hidden(self) -> NDArray[Any] | None:
        """The vectors of the tokens; those that were returned as int8 are decoded to float32."""
        return self.float_hidden if self.hidden_int8 is None else self.hidden_int8.to_float32()


@dataclass(frozen=True, eq=False)
class Encoding:
    """The results of a list; arrays that came in a single reply are read-only views of this reply.

    Indices of sequences are positions in the caller's list.

    Attributes:
        float_pooled: [B, width] one vector per sequence, zeros for a failed sequence; None if not requested, if the
            model has no pooling, or if returned as int8.
        float_hidden: one [length, width] array per sequence, one vector per token; None if not requested, or if
            returned as int8.
        pooled_int8: the pooled vectors, if they were requested as int8.
        hidden_int8: the hidden vectors, if they were requested as int8.
        lengths: [B] number of tokens of each sequence, special tokens included; 0 for a failed sequence.
        offsets: one [length, 2] array per text: begin and end of each token, in Unicode code points; begin and end
            are equal for special tokens; None if not requested.
        truncated: number of tokens before truncation of each truncated text, by index.
        failures: the error of each failed sequence of a `partial` call, by index.
        timings: the time that each stage took.
        model: the model that answered.
        request_id: the request's name in the server's log.
    """

    float_pooled: NDArray[Any] | None
    float_hidden: list[NDArray[Any]] | None
    pooled_int8: Int8Array | None
    hidden_int8: list[Int8Array] | None
    lengths: NDArray[np.int64]
    offsets: list[NDArray[np.uint32]] | None
    truncated: dict[int, int]
    failures: dict[int, HeadwaiterError]
    timings: Timings
    model: ModelRef
    request_id: str

    @cached_property
    def pooled(self) -> NDArray[Any] | None:
        """One vector per sequence; vectors that were returned as int8 are decoded to float32."""
        return self.float_pooled if self.pooled_int8 is None else self.pooled_int8.to_float32()

    @cached_property
    def hidden(self) -> list[NDArray[Any]] | None:
        """One vector per token; vectors that were returned as int8 are decoded to float32."""
        return self.float_hidden if self.hidden_int8 is None else [rows.to_float32() for rows in self.hidden_int8]

    def __repr__(self) -> str:
        pooled = self.float_pooled if self.pooled_int8 is None else self.pooled_int8
        shape = "None" if pooled is None else list(pooled.shape)
        return (
            f"<Encoding of {len(self.lengths)} sequences, {self.lengths.sum()} tokens: pooled {shape}, "
            f"{len(self.truncated)} truncated, {len(self.failures)} failed, model {self.model.name!r}, "
            f"request_id {self.request_id!r}>"
        )


def read_encoding(response: pb.EncodeResponse, first: int, count: int, round_trip_s: float) -> Encoding:
    """Read the reply to one request.

    Args:
        response: the reply.
        first: index of the request's first sequence in the caller's list.
        count: number of sequences in the request.
        round_trip_s: seconds from sending the request to receiving the reply.

    Raises:
        HeadwaiterError: an array's data does not match its shape, its data type or the number of sequences.
    """
    with reading_reply(response.request_id):
        lengths = np.array(response.lengths, dtype=np.int64)
        check_rows("lengths", lengths, expected=count)
        pooled, pooled_int8 = read_vectors(response, "pooled")
        check_rows("pooled", pooled, pooled_int8, expected=count)
        hidden, hidden_int8 = read_vectors(response, "hidden")
        check_rows("hidden", hidden, hidden_int8, expected=int(lengths.sum()))
        offsets = read_offsets(response.offsets, count)
    return Encoding(
        float_pooled=pooled,
        float_hidden=None if hidden is None else split_rows(hidden, lengths),
        pooled_int8=pooled_int8,
        hidden_int8=None if hidden_int8 is None else split_rows(hidden_int8, lengths),
        lengths=lengths,
        offsets=offsets,
        truncated={first + one.sequence: one.original_tokens for one in response.truncated},
        failures=read_failures(response.failures, first, response.request_id),
        timings=read_timings(response.timings, round_trip_s),
        model=model_ref(response.model),
        request_id=response.request_id,
    )


def join_encodings(parts: Sequence[Encoding]) -> Encoding:
    """Join the results of one or more requests of a list, in the list's order; one model must have answered all."""
    if len(parts) == 1:
        return parts[0]
    pooled = _present(part.float_pooled for part in parts)
    pooled_int8 = _present(part.pooled_int8 for part in parts)
    return Encoding(
        float_pooled=None if pooled is None else np.concatenate(pooled),
        float_hidden=chained(part.float_hidden for part in parts),
        pooled_int8=None if pooled_int8 is None else concatenate_int8(pooled_int8),
        hidden_int8=chained(part.hidden_int8 for part in parts),
        lengths=np.concatenate([part.lengths for part in parts]),
        offsets=chained(part.offsets for part in parts),
        truncated=dict(chain.from_iterable(part.truncated.items() for part in parts)),
        failures=dict(chain.from_iterable(part.failures.items() for part in parts)),
        timings=reduce(add, (part.timings for part in parts)),
        model=parts[0].model,
        request_id=parts[0].request_id,
    )


def split_by_sequence(part: Encoding, first: int) -> Iterator[SequenceEncoding]:
    """Yield the result of each sequence of a request whose first sequence has the index `first` in the stream."""
    for row, length in enumerate(part.lengths.tolist()):
        failure = part.failures.get(first + row)
        result_row = None if failure else row
        yield SequenceEncoding(
            index=first + row,
            float_pooled=_row(part.float_pooled, result_row),
            float_hidden=_row(part.float_hidden, result_row),
            pooled_int8=_row(part.pooled_int8, result_row),
            hidden_int8=_row(part.hidden_int8, result_row),
            length=length,
            offsets=_row(part.offsets, result_row),
            original_tokens=part.truncated.get(first + row),
            failure=failure,
            model=part.model,
        )


def read_timings(server: pb.Timings, round_trip_s: float) -> Timings:
    """Return the seconds of the server's stages together with the client's round trip."""
    return Timings(
        round_trip_s=round_trip_s,
        tokenize_s=server.tokenize_s,
        queue_s=server.queue_s,
        assemble_s=server.assemble_s,
        compute_s=server.compute_s,
        respond_s=server.respond_s,
        total_s=server.total_s,
        batches=server.batches,
    )


@contextmanager
def reading_reply(request_id: str) -> Iterator[None]:
    """Raise a `HeadwaiterError` if the block finds that an array of a reply does not fit its shape, type or count."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise HeadwaiterError(
            f"the reply cannot be read ({error!r}): use the same version of client and server",
            request_id=request_id,
        ) from error


def read_offsets(offsets: Sequence[pb.Offsets], count: int) -> list[NDArray[np.uint32]] | None:
    """Return the offsets [length, 2] of each of `count` texts; None if the reply has no offsets."""
    arrays = [np.array([one.begin, one.end], np.uint32).T for one in offsets] or None
    check_rows("offsets", arrays, expected=count)
    return arrays


def read_failures(failures: Sequence[pb.Failure], first: int, request_id: str) -> dict[int, HeadwaiterError]:
    """Return the errors of failed sequences, by index in the list; `first` is the index of the request's first one."""
    return {first + one.sequence: _error(one, first, request_id) for one in failures}


def with_failures(part: _Part, first: int, failures: Mapping[int, HeadwaiterError]) -> _Part:
    """Return the result of a request with failures of its sequences.

    An empty sequence was sent in the place of each failed one. A server may answer it: an empty text has the vector of
    the special tokens. So the values of the failed sequences become zeros, and their lists of rows become empty.

    Args:
        part: the result, an `Encoding` or a `Classification`.
        first: index of the request's first sequence in the caller's list.
        failures: the error of each failed sequence, by index in the caller's list.
    """
    rows = [index - first for index in failures]

    def without_rows(value: Any) -> Any:
        match value:
            case np.ndarray():
                zeroed = value.copy()
                zeroed[rows] = 0
                return zeroed
            case Int8Array():
                return Int8Array(without_rows(value.values), without_rows(value.scales))
            case list():
                return [each[:0] if row in rows else each for row, each in enumerate(value)]
        return value

    fields = {name: without_rows(value) for name, value in vars(part).items()}
    truncated = {index: tokens for index, tokens in part.truncated.items() if index not in failures}
    return replace(part, **fields | {"truncated": truncated, "failures": {**part.failures, **failures}})


def check_rows(field: str, *arrays: Sized | None, expected: int) -> None:
    """Raise a `ValueError` unless each array has the expected number of rows."""
    for rows in arrays:
        if rows is not None and len(rows) != expected:
            raise ValueError(f"{field} has {len(rows)} rows, and {expected} were expected")


def _row(rows: Any, row: int | None) -> Any:
    return None if rows is None or row is None else rows[row]


def _present(items: Iterable[_Item | None]) -> list[_Item] | None:
    """Return the items that are not None; None if all items are None."""
    return [item for item in items if item is not None] or None


def chained(lists: Iterable[list[_Item] | None]) -> list[_Item] | None:
    """Return one list with the items of the lists that are not None; None if all lists are None."""
    return list(chain.from_iterable(present)) if (present := _present(lists)) is not None else None


def _error(failure: pb.Failure, first: int, request_id: str) -> HeadwaiterError:
    """Return the error that a partial reply reports for one sequence."""
    reason = pb.ErrorReason.DESCRIPTOR.values_by_number.get(failure.reason)
    error_class = ERROR_BY_REASON.get(reason.name, HeadwaiterError) if reason else HeadwaiterError
    metadata = {**failure.metadata, "sequence": str(failure.sequence)}
    return renumbered(error_from_metadata(error_class, failure.message, metadata, request_id=request_id), first)
