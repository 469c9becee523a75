"""Read and write the tensors of the Open Inference Protocol: raw or typed, padded or packed. Pure functions."""

import math
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto import open_inference_pb2 as oip
from headwaiter_proto.rules.errors import InvalidInput
from headwaiter_proto.rules.unicode import not_unicode
from headwaiter_server.requests.wire_format import field_tag

InputTensor = oip.ModelInferRequest.InferInputTensor

DTYPES: dict[str, np.dtype[Any]] = {
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
}
# The field of InferTensorContents that holds the values of a type. FP16 has none.
_TYPED_FIELDS = {"INT32": "int_contents", "INT64": "int64_contents", "FP32": "fp32_contents", "BYTES": "bytes_contents"}
# In a raw BYTES tensor, each value follows its length.
_LENGTH = struct.Struct("<I")


def read_array(tensor: InputTensor, raw: bytes | None) -> NDArray[Any]:
    """Return the numbers of an input in its shape; `raw` holds them if they are not in the tensor's contents.

    The shape is not negative, and the type is one of INT32, INT64, FP16 and FP32.

    Raises:
        InvalidInput: the values do not fit the shape, or are in a wrong field.
    """
    dtype, count = DTYPES[tensor.datatype], math.prod(tensor.shape)
    if raw is None:
        values = _typed_numbers(tensor, dtype)
        if len(values) != count:
            raise _wrong_size(tensor, f"{len(values)} values in {_typed_field(tensor)}", f"{count} values")
    else:
        size_bytes = count * dtype.itemsize
        if len(raw) != size_bytes:
            raise _wrong_size(tensor, f"{len(raw)} bytes", f"{count} values of {dtype.itemsize} bytes")
        values = np.frombuffer(raw, dtype)
    return values.reshape(tuple(tensor.shape))


def read_texts(tensor: InputTensor, raw: bytes | None) -> list[str]:
    """Return the texts of a BYTES input; see `read_array`.

    Raises:
        InvalidInput: the values do not fit the shape, are in a wrong field, or are not UTF-8.
    """
    count = math.prod(tensor.shape)
    values = list(_typed_contents(tensor)) if raw is None else _split_bytes(tensor, raw, count)
    if len(values) != count:
        raise _wrong_size(tensor, f"{len(values)} values", f"{count} values")
    texts = []
    for index, value in enumerate(values):
        try:
            texts.append(value.decode())
        except UnicodeDecodeError as fault:
            raise not_unicode(fault, f"sequence {index}", tensor.name, index) from None
    return texts


def kept_positions(mask: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which positions [n, s] an attention mask keeps: one unbroken run in each row.

    Raises:
        InvalidInput: a row has other values than 0 and 1, no 1, or a 0 between two ones.
    """
    kept: NDArray[np.bool_] = mask != 0
    if wrong := _first(((mask != 1) & kept).any(axis=1)):
        raise _wrong_mask(wrong[0], "has values other than 0 and 1: send 1 for tokens and 0 for padding")
    lengths = kept.sum(axis=1)
    if empty := _first(lengths == 0):
        raise _wrong_mask(empty[0], "has no 1, so the sequence has no token: leave the sequence out")
    begins, padding_after = kept.argmax(axis=1), kept[:, ::-1].argmax(axis=1)
    if broken := _first(begins + lengths + padding_after != mask.shape[1]):
        problem = "has a 0 between two ones: put all padding before or all padding after the tokens"
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


def _typed_field(tensor: InputTensor) -> str:
    """Return the field of a tensor's contents that holds its values."""
    field = _TYPED_FIELDS.get(tensor.datatype)
    if field is None:
        problem = f"input {tensor.name!r} is {tensor.datatype}, which has no typed contents: send raw_input_contents"
        raise InvalidInput(problem, field=tensor.name)
    return field


def _typed_contents(tensor: InputTensor) -> Any:
    """Return the values in the field of a tensor's type.

    Raises:
        InvalidInput: another field has values too.
    """
    field = _typed_field(tensor)
    for other, _ in tensor.contents.ListFields():
        if other.name != field:
            problem = f"input {tensor.name!r} is {tensor.datatype} and has values in {other.name}"
            raise InvalidInput(f"{problem}: send its values in {field}", field=tensor.name)
    return getattr(tensor.contents, field)


def _typed_numbers(tensor: InputTensor, dtype: np.dtype[Any]) -> NDArray[Any]:
    values = _typed_contents(tensor)
    if tensor.datatype != "FP32":
        return np.fromiter(values, dtype, len(values))
    # See `add_output`. No other field has values, so this field comes first.
    size_bytes = len(values) * dtype.itemsize
    header = field_tag(oip.InferTensorContents.FP32_CONTENTS_FIELD_NUMBER, size_bytes)
    return np.frombuffer(tensor.contents.SerializeToString(), np.uint8)[len(header) :][:size_bytes].view(dtype)


def joined_bytes(values: Iterable[bytes]) -> bytes:
    """Return the values of a BYTES tensor as raw bytes: each value follows its length."""
    return b"".join(part for value in values for part in (_LENGTH.pack(len(value)), value))


def _split_bytes(tensor: InputTensor, raw: bytes, count: int) -> list[bytes]:
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
    return InvalidInput(f"attention_mask of sequence {sequence} {problem}", sequence=sequence, field="attention_mask")


def _wrong_size(tensor: InputTensor, actual: str, expected: str) -> InvalidInput:
    return InvalidInput(
        f"input {tensor.name!r} has {actual}; its shape {list(tensor.shape)} takes {expected}: correct the shape or "
        "the values",
        field=tensor.name,
    )
