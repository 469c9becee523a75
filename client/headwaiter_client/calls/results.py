"""The results of calls: read replies, and join the results of several requests."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, reduce, wraps
from itertools import chain
from operator import add, attrgetter
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headwaiter_client.calls.models import ModelRef, model_ref
from headwaiter_client.calls.tensors import (
    Int8Array,
    Vectors,
    check_shape,
    concatenate,
    read_sparse,
    read_vectors,
    split_vectors,
)
from headwaiter_client.errors import OutputMissing, renumbered
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import ERROR_BY_REASON, HeadwaiterError, InvalidInput
from headwaiter_proto.rules.status import error_from_metadata

_Item = TypeVar("_Item")
_Read = TypeVar("_Read", bound=Callable[..., Any])
_Part = TypeVar("_Part", bound="ListResult")

_NO_POOLED = (
    "the result has no pooled vectors: leave pooled=False out, or, if the model has no pooling of its own, read hidden "
    'or, if `poolings` of client.model() has it, pass pooling="mean"'
)
_NO_SPARSE = "the result has no sparse vectors: pass sparse=True to a model that weighs tokens, or read pooled"
_IS_SPARSE = "the result has only sparse vectors: read sparse, leave pooled=False out, or pass dense=True"
_NO_HIDDEN = "the result has no hidden vectors: pass hidden=True"
_NO_POOLED_INT8 = 'the result has no int8 pooled vectors: pass dtype="int8", or read pooled'
_NO_HIDDEN_INT8 = 'the result has no int8 hidden vectors: pass hidden=True and hidden_dtype="int8", or read hidden'
NO_OFFSETS = "the result has no offsets: pass offsets=True"

# The stages of a request in the server, in the order in which a request passes through them.
STAGES = ("tokenize", "queue", "assemble", "compute", "respond")


@dataclass  # Not frozen: a frozen object takes three times as long to make.
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


_OF_SERVER = attrgetter(*(each.name for each in fields(Timings)[1:]))


@dataclass(eq=False)  # Not frozen: see `Timings`.
class SequenceEncoding:
    """The result of one sequence, alone or of a stream. Its arrays are writable and keep no other result in memory.

    Attributes:
        index: position of the sequence in the stream, from 0.
        received_pooled: the pooled vectors in the type of the reply, floats or an `Int8Array`; None if it has none.
            Read this if your program does not know which outputs and types were requested.
        received_hidden: the same as `received_pooled` for the hidden vectors.
        received_offsets: the same for the offsets.
        length: number of tokens, special tokens included; 0 if the sequence failed.
        original_tokens: number of tokens before truncation; None if the sequence was not truncated.
        failure: the error of this sequence in a `partial` call; None if the sequence has a result. Reading a vector or
            the offsets of a failed sequence raises this error.
        model: the model that answered.
        received_sparse: the entries of the sparse vector; None if the reply has none.
    """

    index: int
    received_pooled: Vectors | None = field(repr=False)
    received_hidden: Vectors | None = field(repr=False)
    received_offsets: NDArray[np.uint32] | None = field(repr=False)
    length: int
    original_tokens: int | None
    failure: HeadwaiterError | None
    model: ModelRef
    received_sparse: NDArray[Any] | None = field(default=None, repr=False)

    @property
    def pooled(self) -> NDArray[Any]:
        """[width] the sequence's vector; one that was returned as int8 is decoded to float32."""
        return _as_floats(self._unless_failed(self.received_pooled), _no_pooled(self.received_sparse))

    @property
    def sparse(self) -> NDArray[Any]:
        """[entries] the sequence's sparse vector, with the fields "index" and "value"."""
        return present(self._unless_failed(self.received_sparse), _NO_SPARSE)

    @cached_property
    def hidden(self) -> NDArray[Any]:
        """[rows, width] a vector per token that its prompt does not leave out; int8 vectors are decoded to float32."""
        return _as_floats(self._unless_failed(self.received_hidden), _NO_HIDDEN)

    @property
    def pooled_int8(self) -> Int8Array:
        """The sequence's vector, if it was requested as int8."""
        return _as_int8(self._unless_failed(self.received_pooled), _NO_POOLED_INT8)

    @property
    def hidden_int8(self) -> Int8Array:
        """The vectors of the tokens, if they were requested as int8."""
        return _as_int8(self._unless_failed(self.received_hidden), _NO_HIDDEN_INT8)

    @property
    def offsets(self) -> NDArray[np.uint32]:
        """[rows, 2] begin and end of each token in the text, if requested."""
        return present(self._unless_failed(self.received_offsets), NO_OFFSETS)

    def _unless_failed(self, received: _Item) -> _Item:
        if self.failure:
            raise self.failure
        return received


@dataclass(eq=False, kw_only=True)
class ListResult:
    """What the results of lists have in common. Indices of sequences are positions in the caller's list.

    Attributes:
        lengths: [B] number of tokens of each sequence, special tokens included; 0 for a failed sequence.
        truncated: number of tokens before truncation of each truncated text or pair, by index.
        failures: the error of each failed sequence of a `partial` call, by index.
        model: the model that answered.
        request_id: the request's name in the server's log.
    """

    lengths: NDArray[np.int64] = field(repr=False)
    truncated: dict[int, int]
    failures: dict[int, HeadwaiterError]
    model: ModelRef
    request_id: str


@dataclass(eq=False)
class Encoding(ListResult):
    """The results of a list. Its arrays are writable. It also has the attributes of `ListResult`.

    Attributes:
        received_pooled: the pooled vectors in the type of the reply, floats or an `Int8Array`; None if it has none.
            Read this if your program does not know which outputs and types were requested.
        received_hidden: the same as `received_pooled` for the hidden vectors.
        received_offsets: the same for the offsets.
        timings: the time that each stage took.
        received_sparse: the entries of each sparse vector; None if the reply has none.
    """

    received_pooled: Vectors | None
    received_hidden: list[Vectors] | None
    received_offsets: list[NDArray[np.uint32]] | None
    timings: Timings
    received_sparse: list[NDArray[Any]] | None = None

    @property
    def pooled(self) -> NDArray[Any]:
        """[B, width] one vector per sequence, zeros for a failed one; int8 vectors are decoded to float32.

        Raises:
            OutputMissing: pooled vectors were not requested, or the model has no pooling, or sparse vectors.
        """
        return _as_floats(self.received_pooled, _no_pooled(self.received_sparse))

    @property
    def sparse(self) -> list[NDArray[Any]]:
        """One [entries] array per sequence with the fields "index", a token id, and "value"; its other numbers are 0.

        Raises:
            OutputMissing: the reply has no sparse vectors.
        """
        return present(self.received_sparse, _NO_SPARSE)

    @cached_property
    def hidden(self) -> list[NDArray[Any]]:
        """One [rows, width] array per sequence, one vector per token; int8 vectors are decoded to float32.

        Raises:
            OutputMissing: hidden vectors were not requested.
        """
        return [_as_floats(rows, _NO_HIDDEN) for rows in present(self.received_hidden, _NO_HIDDEN)]

    @property
    def pooled_int8(self) -> Int8Array:
        """The pooled vectors as int8.

        Raises:
            OutputMissing: int8 vectors were not requested.
        """
        return _as_int8(self.received_pooled, _NO_POOLED_INT8)

    @property
    def hidden_int8(self) -> list[Int8Array]:
        """The hidden vectors as int8.

        Raises:
            OutputMissing: int8 vectors were not requested.
        """
        return [_as_int8(rows, _NO_HIDDEN_INT8) for rows in present(self.received_hidden, _NO_HIDDEN_INT8)]

    @property
    def offsets(self) -> list[NDArray[np.uint32]]:
        """One [rows, 2] array per text: begin and end of each token, in Unicode code points.

        Begin and end are equal for special tokens, and for masks that fill up a query of a model such as ColBERT.

        Raises:
            OutputMissing: offsets were not requested.
        """
        return present(self.received_offsets, NO_OFFSETS)

    def similarity(self, other: "Encoding | ArrayLike") -> NDArray[np.float32]:
        """Return the cosine of each pooled vector with each of other vectors, float32 [B, other B].

        The cosine with the vector of a failed sequence is 0.

        Args:
            other: another encoding by the same model, or vectors of it, such as those that you have stored.

        Raises:
            InvalidInput: another model gave the other encoding, or the vectors are not numbers or have another width.
        """
        if isinstance(other, Encoding) and not other.model.is_comparable(self.model):
            raise InvalidInput(
                f"the vectors are of {self.model} and of {other.model}, and cannot be compared: encode both with one "
                "model in one precision, or, if the two models were trained together, pass `other.pooled`"
            )
        ours = np.asarray(self.pooled, np.float32)
        try:
            theirs = np.asarray(other.pooled if isinstance(other, Encoding) else other, np.float32)
        except (TypeError, ValueError) as error:
            raise InvalidInput(
                f"the vectors cannot be read as numbers ({error}): pass an encoding, or vectors of one width"
            ) from error
        if ours.shape[-1:] != theirs.shape[-1:]:
            raise InvalidInput(
                f"the vectors have the shapes {list(ours.shape)} and {list(theirs.shape)}: pass vectors of one width"
            )
        cosines: NDArray[np.float32] = unit(ours) @ unit(theirs).T
        return cosines

    def __repr__(self) -> str:
        shape = "None" if self.received_sparse is None else "sparse"
        if self.received_pooled is not None:
            shape = str(list(self.received_pooled.shape))
        return (
            f"<Encoding of {len(self.lengths)} sequences, {self.lengths.sum()} tokens: pooled {shape}, "
            f"{len(self.truncated)} truncated, {len(self.failures)} failed, model {self.model.name!r}, "
            f"request_id {self.request_id!r}>"
        )


def reading_reply(read: _Read) -> _Read:
    """Let a function that reads a reply raise a `HeadwaiterError` if an array does not fit its shape, type or count."""

    @wraps(read)
    def checked(response: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return read(response, *arguments, **options)
        except (KeyError, TypeError, ValueError) as error:
            raise HeadwaiterError(
                f"the reply cannot be read ({error!r}): use the same version of client and server",
                request_id=response.request_id,
            ) from error

    return cast(_Read, checked)


@reading_reply
def read_encoding(response: pb.EncodeResponse, first: int, count: int, round_trip_s: float) -> Encoding:
    """Read the reply to one request; its pooled vectors are read-only views of the reply.

    Args:
        response: the reply.
        first: index of the request's first sequence in the caller's list.
        count: number of sequences in the request.
        round_trip_s: seconds from sending the request to receiving the reply.

    Raises:
        HeadwaiterError: an array does not have the shape or the data type that the reply should have, or the reply
            speaks of a sequence that the request does not have.
    """
    lengths = read_lengths(response, count)
    rows = _read_rows(response, lengths)
    pooled = read_vectors("pooled", response.pooled, count) if response.HasField("pooled") else None
    hidden = read_vectors("hidden", response.hidden, int(rows.sum())) if response.HasField("hidden") else None
    return Encoding(
        received_pooled=pooled,
        received_sparse=read_sparse(response.sparse, count) if response.HasField("sparse") else None,
        received_hidden=None if hidden is None else split_vectors(hidden, rows),
        received_offsets=read_offsets(response.offsets, rows),
        lengths=lengths,
        truncated=read_truncated(response.truncated, first, count),
        failures=read_failures(response.failures, first, count, response.request_id),
        timings=read_timings(response.timings, round_trip_s),
        model=model_ref(response.model),
        request_id=response.request_id,
    )


def _read_rows(response: pb.EncodeResponse, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of hidden rows of each sequence."""
    if not response.rows:
        return lengths
    if len(response.rows) != len(lengths):
        raise ValueError(f"rows has the shape [{len(response.rows)}], and [{len(lengths)}] was expected")
    rows = np.fromiter(response.rows, np.int64)
    if (rows > lengths).any():
        raise ValueError(f"a sequence of {lengths[rows > lengths][0]} tokens has {rows[rows > lengths][0]} rows")
    return rows


def split_by_sequence(part: Encoding, first: int) -> list[SequenceEncoding]:
    """Return the result of each sequence of a request whose first sequence has the index `first` in the stream."""
    return [_sequence(part, row, first + row) for row in range(len(part.lengths))]


def only_sequence(part: Encoding, row: int) -> SequenceEncoding:
    """Return the result of the sequence of a row, as if the sequence had a request of its own; see `part_of`."""
    sequence = _sequence(part, row, row)
    sequence.index = 0
    if sequence.failure:
        sequence.failure = renumbered(sequence.failure, -row)
    return sequence


def _sequence(part: Encoding, row: int, index: int) -> SequenceEncoding:
    """Return the result of the sequence of a row, which has this index in the stream.

    The result has memory of its own: a view would keep the vectors of the whole request in memory.
    """
    pooled = part.received_pooled
    return SequenceEncoding(
        index,
        received_pooled=None if pooled is None else pooled[row].copy(),
        received_hidden=None if part.received_hidden is None else part.received_hidden[row],
        received_offsets=None if part.received_offsets is None else part.received_offsets[row],
        length=int(part.lengths[row]),
        original_tokens=part.truncated.get(index),
        failure=part.failures.get(index),
        model=part.model,
        received_sparse=None if part.received_sparse is None else part.received_sparse[row],
    )


def read_timings(server: pb.Timings, round_trip_s: float) -> Timings:
    """Return the seconds of the server's stages together with the client's round trip."""
    return Timings(round_trip_s, *_OF_SERVER(server))


def read_lengths(
    response: pb.EncodeResponse | pb.ClassifyResponse | pb.TokenSequences, count: int
) -> NDArray[np.int64]:
    """Return the lengths of the `count` sequences of a request.

    Raises:
        ValueError: the reply has another number of lengths.
    """
    if len(response.lengths) != count:
        raise ValueError(f"lengths has the shape [{len(response.lengths)}], and [{count}] was expected")
    return np.fromiter(response.lengths, np.int64, count)  # With a count, NumPy does not have to grow the array.


def read_offsets(offsets: Sequence[pb.Offsets], lengths: NDArray[np.int64]) -> list[NDArray[np.uint32]] | None:
    """Return the offsets [lengths, 2] of each text; None if the reply has no offsets."""
    if not offsets:
        return None
    arrays = [np.array([one.begin, one.end], np.uint32).T for one in offsets]
    for array, length in zip(arrays, lengths.tolist(), strict=True):
        check_shape("offsets", array, length, 2)
    return arrays


def read_truncated(truncated: Sequence[pb.Truncated], first: int, count: int) -> dict[int, int]:
    """Return the number of tokens of truncated texts, by index in the list.

    Args:
        truncated: the entries of a reply.
        first: index of the request's first sequence in the caller's list.
        count: number of sequences in the request.

    Raises:
        ValueError: an entry is about a sequence that the request does not have.
    """
    if not truncated:
        return {}
    _check_sequences("truncated", truncated, count)
    return {first + one.sequence: one.original_tokens for one in truncated}


def read_failures(
    failures: Sequence[pb.Failure], first: int, count: int, request_id: str
) -> dict[int, HeadwaiterError]:
    """Return the errors of failed sequences, by index in the list; see `read_truncated`."""
    if not failures:
        return {}
    _check_sequences("failures", failures, count)
    return {first + one.sequence: _error(one, first, request_id) for one in failures}


def _check_sequences(field_name: str, entries: Sequence[pb.Truncated | pb.Failure], count: int) -> None:
    last = max(one.sequence for one in entries)
    if last >= count:
        raise ValueError(f"{field_name} names sequence {last} of {count}")


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

    def zeroed(array: NDArray[Any]) -> NDArray[Any]:
        copy = array.copy()
        copy[rows] = 0
        return copy

    values = _changed(part, zeroed, lambda each: [rest[:0] if row in rows else rest for row, rest in enumerate(each)])
    truncated = {index: tokens for index, tokens in part.truncated.items() if index not in failures}
    return replace(part, **values | {"truncated": truncated, "failures": {**part.failures, **failures}})


def _changed(
    part: ListResult, of_array: Callable[[NDArray[Any]], NDArray[Any]], of_list: Callable[[list[Any]], list[Any]]
) -> dict[str, Any]:
    """Return the fields of a result with other arrays, and with other lists of the arrays of sequences."""

    def change(value: Any) -> Any:
        match value:
            case np.ndarray():
                return of_array(value)
            case Int8Array():
                return Int8Array(of_array(value.values), of_array(value.scales))
            case list():
                return of_list(value)
        return value

    return {each.name: change(getattr(part, each.name)) for each in fields(part)}


def part_of(result: _Part, first: int, count: int) -> _Part:
    """Return the result of `count` sequences from `first`, as if they had a request of their own.

    The arrays have memory of their own: the bytes of a reply are read-only, and a view would keep all of them.
    """
    part: _Part = object.__new__(type(result))  # The constructor would take most of the time.
    values = vars(part)
    for name, value in vars(result).items():
        match value:
            case np.ndarray() | Int8Array():
                values[name] = value[first : first + count].copy()
            case list():
                values[name] = value[first : first + count]
            case {}:
                indices = range(first, first + count)
                values[name] = {index - first: value[index] for index in indices if index in value}
            case _:
                values[name] = value
    for index, error in part.failures.items():
        part.failures[index] = renumbered(error, -first)
    return part


def failed_part(example: _Part, first: int, count: int, error: HeadwaiterError) -> _Part:
    """Return the result of a request without an answer, as if each of its sequences had failed.

    Args:
        example: the result of another request of the call, which has the same fields.
        first: index of the request's first sequence in the caller's list.
        count: number of sequences in the request.
        error: why there is no answer.
    """
    values = _changed(
        example,
        lambda array: np.zeros((count, *array.shape[1:]), array.dtype),
        lambda each: [each[0][:0]] * count,
    )
    no_time = Timings(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, batches=0)
    failures = dict.fromkeys(range(first, first + count), error)
    return replace(example, **values | {"truncated": {}, "failures": failures, "timings": no_time})


def present(output: _Item | None, advice: str) -> _Item:
    """Return an output of a result; raise `OutputMissing` with the advice if the output is None."""
    if output is None:
        raise OutputMissing(advice)
    return output


def join_results(parts: Sequence[_Part]) -> _Part:
    """Join the results of one or more requests of a list, in the list's order; one model must have answered all.

    Raises:
        HeadwaiterError: the parts differ in their outputs, in the data type of an output or in its width.
    """
    if len(parts) == 1:
        return parts[0]
    values: dict[str, Any] = {}
    for each in fields(parts[0]):
        received = [getattr(part, each.name) for part in parts]
        if len({_kind(value) for value in received}) > 1:
            raise HeadwaiterError(
                f"the replies to the requests of one call differ in {each.name.removeprefix('received_')}: use the "
                "same version of client and server on all replicas",
                request_id=parts[0].request_id,
            )
        match received[0]:
            case np.ndarray() | Int8Array():
                values[each.name] = concatenate(received)
            case list():
                values[each.name] = [*chain.from_iterable(received)]
            case dict():
                values[each.name] = dict(chain.from_iterable(value.items() for value in received))
            case Timings():
                values[each.name] = reduce(add, received)
    return replace(parts[0], **values)


def _kind(output: object) -> object:
    """Return what is equal for outputs that can be joined."""
    match output:
        case list():
            return list, _kind(output[0])
        case Int8Array():
            return Int8Array, output.shape[1:]
        case np.ndarray():
            return output.dtype, output.shape[1:]
    return None


def _no_pooled(sparse: object) -> str:
    """Return what to do if a result has no dense vectors."""
    return _NO_POOLED if sparse is None else _IS_SPARSE


def _as_floats(vectors: Vectors | None, advice: str) -> NDArray[Any]:
    if vectors is None:
        raise OutputMissing(advice)
    return vectors.floats if isinstance(vectors, Int8Array) else vectors


def _as_int8(vectors: Vectors | None, advice: str) -> Int8Array:
    if not isinstance(vectors, Int8Array):
        raise OutputMissing(advice)
    return vectors


def unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return vectors [..., width] scaled to unit length; a vector of zeros stays one."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    unit: NDArray[np.float32] = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
    return unit


def _error(failure: pb.Failure, first: int, request_id: str) -> HeadwaiterError:
    """Return the error that a partial reply reports for one sequence."""
    reason = pb.ErrorReason.DESCRIPTOR.values_by_number.get(failure.reason)
    error_class = ERROR_BY_REASON.get(reason.name, HeadwaiterError) if reason else HeadwaiterError
    metadata = {**failure.metadata, "sequence": str(failure.sequence)}
    return renumbered(error_from_metadata(error_class, failure.message, metadata, request_id=request_id), first)
