"""The kinds of input (texts, pairs, token ids, features, images): check, measure and pack sequences."""

from collections.abc import Hashable, Sequence
from operator import index as as_index
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, Protocol, SupportsIndex, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headwaiter_client.calls.arguments import check_unicode
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import InvalidInput

_FLOATS = {np.dtype("<f4"): pb.DATA_TYPE_FLOAT32, np.dtype("<f2"): pb.DATA_TYPE_FLOAT16}
_INTEGERS = {np.dtype("<i4"): pb.DATA_TYPE_INT32, np.dtype("<i8"): pb.DATA_TYPE_INT64}
_MAX_UINT32 = 2**32 - 1

# Maximum bytes that the wire format adds to a sequence: the tag and length of a text, or an entry in `lengths`.
_OVERHEAD_BYTES = 6
# Room for special tokens and the tokens of a prompt; every other token has at least one byte of the text.
_EXTRA_TOKENS = 16
# A server that accepts requests of T tokens accepts at most this number times T bytes of text.
_TEXT_BYTES_PER_TOKEN = 16
# Texts with more characters are checked one by one, because joining them would take much memory.
_MAX_JOINED_CHARACTERS = 1 << 20


# A request that holds sequences.
Request: TypeAlias = pb.EncodeRequest | pb.ClassifyRequest


class SequenceSize(NamedTuple):
    """Upper bounds for the size of a sequence.

    Attributes:
        tokens: maximum number of tokens that the server can count.
        size_bytes: maximum number of bytes in the message.
    """

    tokens: int
    size_bytes: int


class InputKind(Protocol):
    """One kind of input. Each call creates its own object, because `FeatureInput` remembers the call's width."""

    name: str

    @property
    def form(self) -> Hashable:
        """What is equal for sequences that one request can hold."""
        return self.name

    def convert(self, index: int, sequence: Any) -> Any:
        """Check the sequence with this index, and return it in the form in which it is sent.

        Raises:
            InvalidInput: the sequence is not of this kind.
        """

    def measure(self, sequence: Any, max_text_tokens: int) -> SequenceSize:
        """Return the size of a converted sequence; a text or an image has at most `max_text_tokens` tokens."""

    def size_of_all(self, sequences: Sequence[Any]) -> SequenceSize | None:
        """Return an upper bound of the size of all sequences, if they can be sent as they are.

        None says nothing: each sequence must then be converted and measured.
        """
        return None

    def fill(self, request: Request, sequences: Sequence[Any]) -> None:
        """Pack converted sequences into a request."""

    def empty(self) -> Any:
        """Return a converted sequence of length 0; None if the width is not known yet."""


class TextInput(InputKind):
    """Unicode texts, which the server tokenizes."""

    name = "texts"

    def convert(self, index: int, text: Any) -> str:
        """See `InputKind.convert`."""
        if not isinstance(text, str):
            raise _invalid(index, "texts.values", f"is of type {type(text).__name__}: pass each text as a str")
        check_unicode("", text, field="texts.values", sequence=index)
        return text

    def measure(self, text: str, max_text_tokens: int) -> SequenceSize:
        """See `InputKind.measure`; a text has at most one token per byte, and at most the model's maximum.

        A prompt with query expansion makes short texts longer. If the server refuses their request, it is split again.
        """
        size_bytes = len(text.encode()) + _OVERHEAD_BYTES
        tokens_for_bytes = -(-size_bytes // _TEXT_BYTES_PER_TOKEN)
        return SequenceSize(max(min(size_bytes + _EXTRA_TOKENS, max_text_tokens), tokens_for_bytes), size_bytes)

    def size_of_all(self, texts: Sequence[Any]) -> SequenceSize | None:
        """See `InputKind.size_of_all`; for short texts, checking them together takes a tenth of the time."""
        try:
            if sum(map(len, texts)) > _MAX_JOINED_CHARACTERS:
                return None
            size_bytes = len("".join(texts).encode()) + _OVERHEAD_BYTES * len(texts)
        except (TypeError, UnicodeEncodeError):  # `convert` says which text is wrong.
            return None
        return SequenceSize(size_bytes + _EXTRA_TOKENS * len(texts), size_bytes)

    def fill(self, request: Request, texts: Sequence[str]) -> None:
        """See `InputKind.fill`."""
        # Set the field even for an empty list, so that the server's error is about the empty list, not a missing input.
        request.texts.SetInParent()
        request.texts.values.extend(texts)

    def empty(self) -> str:
        """See `InputKind.empty`."""
        return ""


class PairInput(InputKind):
    """Pairs of Unicode texts, which the server turns into one sequence each."""

    name = "pairs"

    def convert(self, index: int, pair: Any) -> tuple[str, str]:
        """See `InputKind.convert`."""
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise _invalid(index, "pairs", f"is of type {type(pair).__name__}: pass each pair as a tuple of two str")
        for text in pair:
            if not isinstance(text, str):
                raise _invalid(index, "pairs", f"has a {type(text).__name__} in its pair: pass a tuple of two str")
            check_unicode("", text, field="pairs", sequence=index)
        return pair[0], pair[1]

    def measure(self, pair: tuple[str, str], max_text_tokens: int) -> SequenceSize:
        """See `InputKind.measure`; a pair has at most as many tokens as the model's maximum, as a text has."""
        return TextInput().measure("".join(pair), max_text_tokens)

    def fill(self, request: Request, pairs: Sequence[tuple[str, str]]) -> None:
        """See `InputKind.fill`; a first text that all pairs share is sent once."""
        first = [pair[0] for pair in pairs]
        request.pairs.first.extend(first[:1] if len(set(first)) == 1 else first)
        request.pairs.second.extend(pair[1] for pair in pairs)

    def empty(self) -> tuple[str, str]:
        """See `InputKind.empty`."""
        return "", ""


class TokenInput(InputKind):
    """Token ids, each sequence [n] integers; sent as int32 if all fit, else as int64."""

    name = "tokens"

    def convert(self, index: int, sequence: ArrayLike) -> NDArray[np.int64]:
        """See `InputKind.convert`."""
        ids = _array(index, sequence, self.name, rank=1)
        largest = np.iinfo(np.int64).max
        are_int64 = ids.size == 0 or ids.dtype.kind == "i" or (ids.dtype.kind == "u" and ids.max() <= largest)
        if not are_int64:
            advice = "pass token ids as integers below 2**63, or features as an array [n, width]"
            raise _invalid(index, "tokens.data", f"holds {ids.dtype} values: {advice}")
        return ids.astype("<i8")

    def measure(self, ids: NDArray[np.int64], _max_text_tokens: int) -> SequenceSize:
        """See `InputKind.measure`."""
        return SequenceSize(len(ids), ids.nbytes + _OVERHEAD_BYTES)

    def fill(self, request: Request, sequences: Sequence[NDArray[np.int64]]) -> None:
        """See `InputKind.fill`."""
        packed = np.concatenate([self.empty(), *sequences])
        narrow = packed.astype("<i4")
        packed = narrow if np.array_equal(narrow, packed) else packed
        request.tokens.dtype = _INTEGERS[packed.dtype]
        request.tokens.data = packed.tobytes()
        request.tokens.lengths.extend(map(len, sequences))

    def empty(self) -> NDArray[np.int64]:
        """See `InputKind.empty`."""
        return np.empty(0, "<i8")


class FeatureInput(InputKind):
    """Feature vectors, each sequence [n, width] real numbers; sent as float16 if all are float16, else as float32."""

    name = "features"

    def __init__(self) -> None:
        self._width: int | None = None

    @property
    def form(self) -> Hashable:
        """See `InputKind.form`."""
        return self.name, self._width

    def convert(self, index: int, sequence: ArrayLike) -> NDArray[Any]:
        """See `InputKind.convert`; the first sequence sets the width of the call."""
        rows = _array(index, sequence, self.name, rank=2)
        if rows.dtype.kind not in "fiu":
            raise _invalid(index, "features.data", f"holds {rows.dtype} values: pass features as real numbers")
        width = rows.shape[1]
        if self._width is None:
            self._width = width
        if width != self._width:
            raise _invalid(
                index,
                "features.width",
                f"has width {width} and the first sequence has width {self._width}: give all sequences one width",
            )
        with np.errstate(over="ignore"):  # Values beyond float32 become infinite, and the server refuses infinities.
            return rows if rows.dtype == np.float16 else rows.astype("<f4")

    def measure(self, rows: NDArray[Any], _max_text_tokens: int) -> SequenceSize:
        """See `InputKind.measure`."""
        return SequenceSize(len(rows), rows.nbytes + _OVERHEAD_BYTES)

    def fill(self, request: Request, sequences: Sequence[NDArray[Any]]) -> None:
        """See `InputKind.fill`."""
        all_float16 = bool(sequences) and all(rows.dtype == np.float16 for rows in sequences)
        width = self._width or 0
        packed = np.concatenate([np.empty((0, width), "<f2"), *sequences], dtype="<f2" if all_float16 else "<f4")
        request.features.dtype = _FLOATS[packed.dtype]
        request.features.width = width
        request.features.data = packed.tobytes()
        request.features.lengths.extend(map(len, sequences))

    def empty(self) -> NDArray[Any] | None:
        """See `InputKind.empty`."""
        return None if self._width is None else np.empty((0, self._width), "<f2")


class ImageInput(InputKind):
    """Images as the bytes or the paths of JPEG and PNG files."""

    name = "images"

    def convert(self, index: int, image: Any) -> bytes:
        """See `InputKind.convert`; a file is read."""
        if isinstance(image, bytes | bytearray | memoryview):
            return bytes(image)
        if not isinstance(image, PathLike):
            kind = type(image).__name__
            raise _invalid(
                index, "images.values", f"is of type {kind}: pass the bytes of an image file, or a pathlib.Path"
            )
        try:
            return Path(image).read_bytes()
        except OSError as error:
            raise _invalid(index, "images.values", f"cannot be read ({error}): pass the path of an image") from error

    def measure(self, image: bytes, max_text_tokens: int) -> SequenceSize:
        """See `InputKind.measure`."""
        return SequenceSize(max_text_tokens, len(image) + _OVERHEAD_BYTES)

    def fill(self, request: Request, images: Sequence[bytes]) -> None:
        """See `InputKind.fill`."""
        request.images.values.extend(images)

    def empty(self) -> bytes:
        """See `InputKind.empty`."""
        return b""


def input_kind_of(sequence: Any) -> InputKind:
    """Return the kind that a sequence looks like.

    A str is a text, a tuple or list of strs a pair of texts, bytes or a path an image, an array of rank 2 features. All
    others are token ids.
    """
    if isinstance(sequence, str):
        return TextInput()
    if isinstance(sequence, bytes | bytearray | memoryview | PathLike):
        return ImageInput()
    if isinstance(sequence, tuple | list) and any(isinstance(text, str) for text in sequence):
        return PairInput()
    try:
        has_rows = np.ndim(sequence) >= 2
    except (ValueError, TypeError, RuntimeError):  # `TokenInput.convert` raises the error with the sequence's index.
        has_rows = False
    return FeatureInput() if has_rows else TokenInput()


def whole_number(field: str, value: SupportsIndex, minimum: int = 0) -> int:
    """Return an integer that fits the wire's uint32.

    Raises:
        TypeError: the value is not an integer.
        InvalidInput: the value is below `minimum` or above 2**32 - 1.
    """
    message = f"{field} has the value {value!r}: pass whole numbers from {minimum} to {_MAX_UINT32}"
    try:
        number = as_index(value)
    except TypeError:
        raise TypeError(message) from None
    if not minimum <= number <= _MAX_UINT32:
        raise InvalidInput(message, field=field)
    return number


def _array(index: int, sequence: ArrayLike, field: str, rank: int) -> NDArray[Any]:
    """Return a sequence as an array of the given rank."""
    shape = "[n]" if rank == 1 else "[n, width]"
    _refuse_masked(index, sequence, field, rank)
    try:
        array = np.asarray(sequence)
    # PyTorch raises TypeError for tensors on a GPU, and RuntimeError for tensors with a gradient.
    except (ValueError, TypeError, RuntimeError) as error:
        raise _invalid(index, f"{field}.data", f"is not an array ({error}): pass numbers of shape {shape}") from error
    if array.ndim != rank:
        one = "[ids]" if rank == 1 else "[rows], for a sound [sound_rows(samples, client.model())]"
        advice = f"for one sequence pass {one}" if array.ndim == rank - 1 else f"pass numbers of shape {shape}"
        raise _invalid(
            index, f"{field}.data", f"has {array.ndim} dimensions and a sequence of {field} has {rank}: {advice}"
        )
    return array


def _refuse_masked(index: int, sequence: ArrayLike, field: str, rank: int) -> None:
    """Raise `InvalidInput` for an array with masked values, because a request would send what is under the mask."""
    rows = sequence if rank > 1 and isinstance(sequence, list | tuple) else [sequence]
    masked = sum(np.ma.getmaskarray(row).sum() for row in rows if isinstance(row, np.ma.MaskedArray))
    if masked:
        raise _invalid(
            index,
            f"{field}.data",
            f"is a masked array, of which {masked} values are masked: pass the values to send, such as "
            "array.compressed() or array.filled(0)",
        )


def _invalid(index: int, field: str, problem: str) -> InvalidInput:
    return InvalidInput(problem, sequence=index, field=field)
