"""The tensors of the Open Inference Protocol: what their values mean, padded or packed. Pure functions."""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto import open_inference_pb2 as oip
from headwaiter_proto.rules.errors import InvalidInput
from headwaiter_proto.rules.unicode import not_unicode
from headwaiter_server.requests.wire_format import field_tag

DTYPES: dict[str, np.dtype[Any]] = {
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
}
# In a raw BYTES tensor, each value follows its length.
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Input:
    """An input of a request.

    Attributes:
        name: the name.
        datatype: the type of the values, one of those of its name.
        shape: the shape, which has no negative axis.
        values: the values: raw, or in order.
    """

    name: str
    datatype: str
    shape: Sequence[int]
    values: bytes | NDArray[Any] | Sequence[str | bytes]


def read_array(tensor: Input) -> NDArray[Any]:
    """Return the numbers of an input in its shape.

    Raises:
        InvalidInput: the values do not fit the shape.
    """
    dtype, count, values = DTYPES[tensor.datatype], math.prod(tensor.shape), tensor.values
    if isinstance(values, bytes):
        if len(values) != count * dtype.itemsize:
            raise _wrong_size(tensor, f"{len(values)} bytes", f"{count} values of {dtype.itemsize} bytes")
        values = np.frombuffer(values, dtype)
    elif len(values) != count:
        raise _wrong_size(tensor, f"{len(values)} values", f"{count} values")
    return np.asarray(values).reshape(tuple(tensor.shape))


def read_texts(tensor: Input) -> list[str]:
    """Return the texts of a BYTES input.

    Raises:
        InvalidInput: the values do not fit the shape, or are not UTF-8.
    """
    count, values = math.prod(tensor.shape), tensor.values
    if isinstance(values, bytes):
        values = _split_bytes(tensor, values, count)
    if len(values) != count:
        raise _wrong_size(tensor, f"{len(values)} values", f"{count} values")
    texts = []
    for index, value in enumerate(values):
        try:
            texts.append(value if isinstance(value, str) else value.decode())
        except UnicodeDecodeError as fault:
            raise not_unicode(fault, "", tensor.name, index) from None
    return texts


def kept_positions(mask: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which positions [n, s] an attention mask keeps: one unbroken run in each row.

    Raises:
        InvalidInput: a row has other values than 0 and 1, no 1, or a 0 between two ones.
    """
    kept: NDArray[np.bool_] = mask != 0
    if wrong := _first(((mask != 1) & kept).any(axis=1)):
        raise _wrong_mask(
            wrong[0], "has values other than 0 and 1 in attention_mask: send 1 for tokens and 0 for padding"
        )
    lengths = kept.sum(axis=1)
    if empty := _first(lengths == 0):
        raise _wrong_mask(empty[0], "has no 1 in attention_mask, so it has no token: leave it out")
    begins, padding_after = kept.argmax(axis=1), kept[:, ::-1].argmax(axis=1)
    if broken := _first(begins + lengths + padding_after != mask.shape[1]):
        problem = "has a 0 between two ones in attention_mask: put all padding before or all after the tokens"
        raise _wrong_mask(broken[0], problem)
    return kept


def pad(rows: NDArray[Any], lengths: Sequence[int], kept: NDArray[np.bool_] | None) -> NDArray[Any]:
    """Return packed rows [sum of lengths, width] as [sequences, padded length, width], with zeros for padding.

    Args:
        rows: the rows.
        lengths: the length of each sequence.
        kept: which positions [sequences, padded length] of the input are tokens; None to put the padding after them.
    """
    if kept is not None:
        padded = np.zeros((*kept.shape, rows.shape[1]), rows.dtype)
        padded[kept] = rows
        return padded
    longest = max(lengths)
    if min(lengths) == longest:
        return rows.reshape(len(lengths), longest, rows.shape[1])
    padded = np.zeros((len(lengths), longest, rows.shape[1]), rows.dtype)
    padded[np.arange(longest) < np.array(lengths)[:, None]] = rows
    return padded


def add_output(response: oip.ModelInferResponse, name: str, datatype: str, values: NDArray[Any], *, raw: bool) -> None:
    """Add an output of FP32 or INT32 to a response, as raw or as typed contents."""
    output = response.outputs.add(name=name, datatype=datatype, shape=values.shape)
    data = values.astype(DTYPES[datatype], copy=False).tobytes()
    if raw:
        response.raw_output_contents.append(data)
    elif datatype == "FP32":
        # A packed field of floats has the bytes of the array, so that no loop makes millions of Python floats.
        field = oip.InferTensorContents.FP32_CONTENTS_FIELD_NUMBER
        output.contents.MergeFromString(field_tag(field, len(data)) + data)
    else:
        output.contents.int_contents.extend(values.ravel().tolist())


def _split_bytes(tensor: Input, raw: bytes, count: int) -> list[bytes]:
    """Return the values of a raw BYTES tensor.

    Raises:
        InvalidInput: the bytes are not `count` values.
    """
    values: list[bytes] = []
    end = 0
    while end < len(raw) and len(values) <= count:
        begin = end + _LENGTH.size
        if begin > len(raw):
            break
        end = begin + _LENGTH.unpack_from(raw, end)[0]
        values.append(raw[begin:end])
    if end != len(raw) or len(values) != count:
        raise InvalidInput(
            f"input {tensor.name!r} has {len(raw)} bytes, which are not {count} values of BYTES: send each value after "
            "its length, an unsigned little-endian number of 4 bytes",
            field=tensor.name,
        )
    return values


def _first(wrong: NDArray[np.bool_]) -> list[int]:
    """Return the index of the first True in a list, or an empty list."""
    first: list[int] = np.flatnonzero(wrong)[:1].tolist()
    return first


def _wrong_mask(sequence: int, problem: str) -> InvalidInput:
    return InvalidInput(problem, sequence=sequence, field="attention_mask")


def _wrong_size(tensor: Input, actual: str, expected: str) -> InvalidInput:
    return InvalidInput(
        f"input {tensor.name!r} has {actual}; its shape {list(tensor.shape)} takes {expected}: correct the shape or "
        "the values",
        field=tensor.name,
    )
