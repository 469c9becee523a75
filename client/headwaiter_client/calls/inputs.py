"""Sequences as they go out: checked, measured, and packed into the fields of a request."""

from collections.abc import Sequence
from operator import index as as_index
from typing import Any, NamedTuple, Protocol, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headwaiter_client.errors import InvalidInput
from headwaiter_proto import encoder_pb2 as pb

_FLOATS = {np.dtype("<f4"): pb.DATA_TYPE_FLOAT32, np.dtype("<f2"): pb.DATA_TYPE_FLOAT16}
_INTEGERS = {np.dtype("<i4"): pb.DATA_TYPE_INT32, np.dtype("<i8"): pb.DATA_TYPE_INT64}
_MOST_UINT32 = 2**32 - 1

# Most that the wire adds to a sequence: a text's tag and length, or the entry in `lengths`.
_OVERHEAD_BYTES = 6
# A token is of one byte at least; special tokens and prompts come on top.
_EXTRA_TOKENS = 16
# Servers take no more bytes of text than this for each token that a request may have.
_TEXT_BYTES_PER_TOKEN = 16


class Size(NamedTuple):
    """What a sequence takes of a request's limits, at most."""

    tokens: int
    size_bytes: int


class Form(Protocol):
    """A form that the sequences of a call come in; good for one call."""

    name: str

    def read(self, index: int, sequence: Any) -> Any:
        """Returns sequence number `index` as it will be sent.

        Raises:
            InvalidInput: it is of another form.
        """

    def size(self, sequence: Any, max_text_tokens: int) -> Size:
        """Measures what `read` returned."""

    def fill(self, request: pb.EncodeRequest, sequences: Sequence[Any]) -> None:
        """Packs what `read` returned."""

    def empty(self) -> Any:
        """Returns a sequence of no tokens, which servers refuse; None where that cannot be said yet."""


class Texts:
    """Unicode texts, which the server tokenises."""

    name = "texts"

    def read(self, index: int, text: Any) -> str:
        """See `Form.read`."""
        if not isinstance(text, str):
            raise _invalid(index, "texts.values", f"is of type {type(text).__name__}; texts are str")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise _invalid(index, "texts.values", f"is not Unicode text: {error}") from error
        return text

    def size(self, text: str, max_text_tokens: int) -> Size:
        """See `Form.size`: only the server knows a text's tokens, but not more than its bytes or the model's most."""
        size_bytes = len(text.encode()) + _OVERHEAD_BYTES
        by_bytes = -(-size_bytes // _TEXT_BYTES_PER_TOKEN)
        return Size(max(min(size_bytes + _EXTRA_TOKENS, max_text_tokens), by_bytes), size_bytes)

    def fill(self, request: pb.EncodeRequest, texts: Sequence[str]) -> None:
        """See `Form.fill`."""
        # Present even if there are none: that, the server judges.
        request.texts.SetInParent()
        request.texts.values.extend(texts)

    def empty(self) -> str:
        """See `Form.empty`."""
        return ""


class Tokens:
    """Token ids, each sequence [n] integers; sent as 32-bit values when all of them fit."""

    name = "tokens"

    def read(self, index: int, sequence: ArrayLike) -> NDArray[np.int64]:
        """See `Form.read`."""
        ids = _array(index, sequence, self.name, rank=1)
        largest = np.iinfo(np.int64).max
        whole = ids.size == 0 or ids.dtype.kind == "i" or (ids.dtype.kind == "u" and ids.max() <= largest)
        if not whole:
            raise _invalid(index, "tokens.data", f"holds {ids.dtype} values; token ids are integers below 2**63")
        return ids.astype("<i8")

    def size(self, ids: NDArray[np.int64], _max_text_tokens: int) -> Size:
        """See `Form.size`."""
        return Size(len(ids), ids.nbytes + _OVERHEAD_BYTES)

    def fill(self, request: pb.EncodeRequest, sequences: Sequence[NDArray[np.int64]]) -> None:
        """See `Form.fill`."""
        packed = np.concatenate([np.empty(0, "<i8"), *sequences])
        narrow = packed.astype("<i4")
        packed = narrow if np.array_equal(narrow, packed) else packed
        request.tokens.dtype = _INTEGERS[packed.dtype]
        request.tokens.data = packed.tobytes()
        request.tokens.lengths.extend(map(len, sequences))

    def empty(self) -> NDArray[np.int64]:
        """See `Form.empty`."""
        return np.empty(0, "<i8")


class Features:
    """Feature vectors, each sequence [n, width] real numbers; sent as float32 unless all of a request are float16."""

    name = "features"

    def __init__(self) -> None:
        self._width: int | None = None

    def read(self, index: int, sequence: ArrayLike) -> NDArray[Any]:
        """See `Form.read`; all must be as wide as the first."""
        rows = _array(index, sequence, self.name, rank=2)
        if rows.dtype.kind not in "fiu":
            raise _invalid(index, "features.data", f"holds {rows.dtype} values; features are real numbers")
        if self._width is None:
            self._width = rows.shape[1]
        if rows.shape[1] != self._width:
            raise _invalid(index, "features.width", f"is {rows.shape[1]} wide and the first {self._width}")
        with np.errstate(over="ignore"):  # What is beyond float32 becomes infinite, which the server refuses.
            return rows if rows.dtype == np.float16 else rows.astype("<f4")

    def size(self, rows: NDArray[Any], _max_text_tokens: int) -> Size:
        """See `Form.size`."""
        return Size(len(rows), rows.nbytes + _OVERHEAD_BYTES)

    def fill(self, request: pb.EncodeRequest, sequences: Sequence[NDArray[Any]]) -> None:
        """See `Form.fill`."""
        half = bool(sequences) and all(rows.dtype == np.float16 for rows in sequences)
        width = self._width or 0
        packed = np.concatenate([np.empty((0, width), "<f2"), *sequences], dtype="<f2" if half else "<f4")
        request.features.dtype = _FLOATS[packed.dtype]
        request.features.width = width
        request.features.data = packed.tobytes()
        request.features.lengths.extend(map(len, sequences))

    def empty(self) -> NDArray[Any] | None:
        """See `Form.empty`."""
        return None if self._width is None else np.empty((0, self._width), "<f2")


def form_of(sequence: Any) -> Form:
    """Returns the form that a sequence is in, or is nearest to: a text, rows of features, or else token ids."""
    if isinstance(sequence, str):
        return Texts()
    try:
        rows = np.ndim(sequence) >= 2
    except (ValueError, TypeError, RuntimeError):  # No array: for `read` to say.
        rows = False
    return Features() if rows else Tokens()


def whole_number(field: str, value: SupportsIndex, least: int = 0) -> int:
    """Returns a number that the wire can hold.

    Raises:
        TypeError: it is of another type.
        InvalidInput: it is too small or too large.
    """
    refusal = f"{field} has {value!r}; it takes whole numbers from {least}"
    try:
        number = as_index(value)
    except TypeError:
        raise TypeError(refusal) from None
    if not least <= number <= _MOST_UINT32:
        raise InvalidInput(refusal, field=field)
    return number


def _array(index: int, sequence: ArrayLike, field: str, rank: int) -> NDArray[Any]:
    try:
        array = np.asarray(sequence)
    except (ValueError, TypeError, RuntimeError) as error:  # The latter two from tensors on a GPU or with a gradient.
        raise _invalid(index, f"{field}.data", f"is no array: {error}") from error
    if array.ndim != rank:
        one = f"; for one sequence pass [{'ids' if rank == 1 else 'rows'}]" if array.ndim == rank - 1 else ""
        raise _invalid(index, f"{field}.data", f"has {array.ndim} dimensions; a sequence of {field} has {rank}{one}")
    return array


def _invalid(index: int, field: str, what: str) -> InvalidInput:
    return InvalidInput(f"sequence {index} {what}", sequence=index, field=field)
