"""Replies as they come in: arrays that view their bytes, and results of several requests joined."""

from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, field
from functools import reduce
from itertools import chain
from operator import add
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from headwaiter_client.calls.tensors import Int8Array, array, int8_array, join_int8, split
from headwaiter_client.errors import ERROR_BY_REASON, HeadwaiterError, renumbered
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.status import error_from_metadata

_Rows = TypeVar("_Rows")

_PRECISIONS = {
    pb.PRECISION_FP32: "fp32",
    pb.PRECISION_FP16: "fp16",
    pb.PRECISION_BF16: "bf16",
    pb.PRECISION_INT8: "int8",
}


@dataclass(frozen=True)
class ModelRef:
    """Which weights answered: vectors of two digests, or of two precisions, must not be compared.

    Attributes:
        name: the model's name.
        digest: SHA-256 of its bundle's manifest, in hexadecimal.
        precision: of the graph that answered: "fp32", "fp16", "bf16" or "int8"; empty where the server does not say.
    """

    name: str
    digest: str
    precision: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.digest[:12]} in {self.precision or 'unknown precision'}"


@dataclass(frozen=True)
class Timings:
    """Where the time of a call went, in seconds: of a list that took several requests at once, their sums.

    Attributes:
        round_trip_s: from sending a request to holding its reply, measured by the client.
        tokenize_s: the server parsed, checked and tokenised the request.
        queue_s: it waited for the device.
        assemble_s: the batch was put together.
        compute_s: the model ran.
        respond_s: the results were joined and the reply built.
        total_s: the sum of the server's stages; `round_trip_s - total_s` went to the network and gRPC.
        batches: batches that the sequences of a request ran in.
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
    """The result of one sequence of a stream; its arrays are read-only views of a reply.

    Attributes:
        index: which sequence of the stream it is, counted from 0.
        pooled: [width] its vector; None when not asked for, not offered, failed, or in int8.
        hidden: [length, width] one vector a token; None when not asked for, failed, or in int8.
        pooled_int8: `pooled` where it was asked for in int8.
        hidden_int8: `hidden` where it was asked for in int8.
        length: its tokens, special tokens included; 0 when failed.
        offsets: [length, 2] where in its text each token begins and ends; None when not asked for or failed.
        original_tokens: how many tokens it had before it was cut; None where it was not.
        failure: why a `partial` call has no result for it; None where it has.
        model: which weights answered.
    """

    index: int
    pooled: NDArray[Any] | None = field(repr=False)
    hidden: NDArray[Any] | None = field(repr=False)
    pooled_int8: Int8Array | None = field(repr=False)
    hidden_int8: Int8Array | None = field(repr=False)
    length: int
    offsets: NDArray[np.uint32] | None = field(repr=False)
    original_tokens: int | None
    failure: HeadwaiterError | None
    model: ModelRef


@dataclass(frozen=True, eq=False)
class Encoding:
    """The results of a list; arrays that came in one reply are read-only views of it.

    Indices of sequences are those of the caller's list.

    Attributes:
        pooled: [batch, width] one vector a sequence, zeros for a failed one; None when not asked for, not offered, or
            in int8.
        hidden: for each sequence [length, width], one vector a token, those of a reply all views of one array; None
            when not asked for, or in int8.
        pooled_int8: `pooled` where it was asked for in int8.
        hidden_int8: `hidden` where it was asked for in int8.
        lengths: [batch] tokens of each sequence, special tokens included; 0 for a failed one.
        offsets: for each text [length, 2], the begin and end of each token in it in Unicode code points, the same for
            special tokens; None when not asked for.
        truncated: by index, how many tokens a text had before it was cut to the model's maximum.
        failures: by index, why a `partial` call has no result for a sequence.
        timings: where the time went.
        model: which weights answered.
        request_id: what the server's log calls the request.
    """

    pooled: NDArray[Any] | None
    hidden: list[NDArray[Any]] | None
    pooled_int8: Int8Array | None
    hidden_int8: list[Int8Array] | None
    lengths: NDArray[np.int64]
    offsets: list[NDArray[np.uint32]] | None
    truncated: dict[int, int]
    failures: dict[int, HeadwaiterError]
    timings: Timings
    model: ModelRef
    request_id: str

    def __repr__(self) -> str:
        pooled = self.pooled if self.pooled_int8 is None else self.pooled_int8
        shape = "None" if pooled is None else list(pooled.shape)
        return (
            f"<Encoding of {len(self.lengths)} sequences, {self.lengths.sum()} tokens: pooled {shape}, "
            f"{len(self.truncated)} truncated, {len(self.failures)} failed, model {self.model.name!r}, "
            f"request_id {self.request_id!r}>"
        )


def encoding(response: pb.EncodeResponse, first: int, count: int, round_trip_s: float) -> Encoding:
    """Reads the reply to a request of `count` sequences, of which the first is number `first` of the caller's list.

    Raises:
        HeadwaiterError: the reply does not hold what it says, or not what was asked for.
    """
    try:
        lengths = np.array(response.lengths, dtype=np.int64)
        _check_rows("lengths", lengths, wanted=count)
        pooled, pooled_int8 = _vectors(response, "pooled")
        _check_rows("pooled", pooled, pooled_int8, wanted=count)
        hidden, hidden_int8 = _vectors(response, "hidden")
        _check_rows("hidden", hidden, hidden_int8, wanted=int(lengths.sum()))
        offsets = [np.array([one.begin, one.end], np.uint32).T for one in response.offsets] or None
        _check_rows("offsets", offsets, wanted=count)
    except (KeyError, TypeError, ValueError) as error:
        raise HeadwaiterError(f"the reply cannot be read: {error}", request_id=response.request_id) from error
    return Encoding(
        pooled=pooled,
        hidden=None if hidden is None else split(hidden, lengths),
        pooled_int8=pooled_int8,
        hidden_int8=None if hidden_int8 is None else split(hidden_int8, lengths),
        lengths=lengths,
        offsets=offsets,
        truncated={first + one.sequence: one.original_tokens for one in response.truncated},
        failures={first + one.sequence: _failure(one, first, response.request_id) for one in response.failures},
        timings=timings(response.timings, round_trip_s),
        model=model_ref(response.model),
        request_id=response.request_id,
    )


def join(parts: Sequence[Encoding]) -> Encoding:
    """Puts the results of a list's requests together, at least one, in order; all of one model."""
    if len(parts) == 1:
        return parts[0]
    pooled = _all(part.pooled for part in parts)
    pooled_int8 = _all(part.pooled_int8 for part in parts)
    return Encoding(
        pooled=None if pooled is None else np.concatenate(pooled),
        hidden=_end_to_end(part.hidden for part in parts),
        pooled_int8=None if pooled_int8 is None else join_int8(pooled_int8),
        hidden_int8=_end_to_end(part.hidden_int8 for part in parts),
        lengths=np.concatenate([part.lengths for part in parts]),
        offsets=_end_to_end(part.offsets for part in parts),
        truncated=dict(chain.from_iterable(part.truncated.items() for part in parts)),
        failures=dict(chain.from_iterable(part.failures.items() for part in parts)),
        timings=reduce(add, (part.timings for part in parts)),
        model=parts[0].model,
        request_id=parts[0].request_id,
    )


def each_sequence(part: Encoding, first: int) -> Iterator[SequenceEncoding]:
    """Takes the results of a request apart, of which the first is number `first` of the stream."""
    for row, length in enumerate(part.lengths.tolist()):
        failure = part.failures.get(first + row)
        good = None if failure else row
        yield SequenceEncoding(
            index=first + row,
            pooled=_at(part.pooled, good),
            hidden=_at(part.hidden, good),
            pooled_int8=_at(part.pooled_int8, good),
            hidden_int8=_at(part.hidden_int8, good),
            length=length,
            offsets=_at(part.offsets, good),
            original_tokens=part.truncated.get(first + row),
            failure=failure,
            model=part.model,
        )


def timings(server: pb.Timings, round_trip_s: float) -> Timings:
    """Puts the server's stages and the client's round trip side by side."""
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


def model_ref(message: pb.ModelRef) -> ModelRef:
    """Reads which weights answered."""
    return ModelRef(message.name, message.digest, precision_name(message.precision))


def precision_name(precision: pb.Precision) -> str:
    """Returns what people call a precision; nothing where it is none that we know."""
    return _PRECISIONS.get(precision, "")


def _vectors(
    response: pb.EncodeResponse, field: Literal["pooled", "hidden"]
) -> tuple[NDArray[Any] | None, Int8Array | None]:
    """Reads vectors into one of two kinds of arrays, or none."""
    tensor: pb.Tensor = getattr(response, field)
    if not response.HasField(field):
        return None, None
    return (None, int8_array(tensor)) if tensor.dtype == pb.DATA_TYPE_INT8 else (array(tensor), None)


def _check_rows(field: str, *arrays: Sized | None, wanted: int) -> None:
    for rows in arrays:
        if rows is not None and len(rows) != wanted:
            raise ValueError(f"{field} has {len(rows)} rows in place of {wanted}")


def _at(rows: Any, row: int | None) -> Any:
    return None if rows is None or row is None else rows[row]


def _all(arrays: Iterable[_Rows | None]) -> list[_Rows] | None:
    """Returns the arrays that are there, if any is."""
    return [rows for rows in arrays if rows is not None] or None


def _end_to_end(lists: Iterable[list[_Rows] | None]) -> list[_Rows] | None:
    there = _all(lists)
    return None if there is None else list(chain.from_iterable(there))


def _failure(failure: pb.Failure, first: int, request_id: str) -> HeadwaiterError:
    reason = pb.ErrorReason.DESCRIPTOR.values_by_number.get(failure.reason)
    kind = ERROR_BY_REASON.get(reason.name, HeadwaiterError) if reason else HeadwaiterError
    metadata = {**failure.metadata, "sequence": str(failure.sequence)}
    return renumbered(error_from_metadata(kind, failure.message, metadata, request_id=request_id), first)
