"""The forms of vectors in JSON: numbers, base64, and small whole numbers that stand for one or eight numbers each."""

from base64 import b64encode
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules.errors import InvalidInput
from headwaiter_proto.rules.responses import quantize_rows
from headwaiter_server.http.api.operations import adapt_to_model, json_rows
from headwaiter_server.requests.fields import Field, Kind, Question, list_of, one_of, shown

_FORMS = ("float", "base64", "int8", "uint8", "binary", "ubinary")
# One form, and several of them.
FORM = one_of({form: [form] for form in _FORMS})
FORMS = list_of(one_of({form: form for form in _FORMS}))
FORMS_PLACE = "options.forms"
ABOUT_FORMS = (
    "float (default); base64: little-endian float32; int8 or uint8: the largest magnitude of a vector becomes 127, or "
    "as ranges say; binary or ubinary: a bit for each number, 1 above 0, and eight bits in an int8 or uint8."
)
# int8 and uint8 of the same number differ by 128, which is their highest bit.
_HIGHEST_BIT = np.uint8(128)
_STEPS = 255


def _read_ranges(value: Any, name: str) -> Any:
    wanted = "send a list of the lowest and a list of the highest number of each dimension"
    lists = value if isinstance(value, list) else [value]
    if len(lists) != 2 or not all(isinstance(each, list) for each in lists) or len(lists[0]) != len(lists[1]):
        raise InvalidInput(f"{name} is not two lists of equal length: {wanted}", field=name)
    for number in (*lists[0], *lists[1]):
        if type(number) not in (int, float):
            raise InvalidInput(f"{name} has {shown(number)}: {wanted}", field=name)
    with np.errstate(over="ignore", invalid="ignore"):
        ranges = np.array(lists, np.float64).astype(np.float32)
        widths = ranges[1] - ranges[0]
    if not (widths >= 0).all() or not np.isfinite(widths).all():
        problem = f"{name} has a lowest number above the highest one, or a number or a range that float32 cannot hold"
        raise InvalidInput(f"{problem}: {wanted}", field=name)
    return ranges.tolist()


_NUMBERS = {"type": "array", "items": {"type": "number"}}
RANGES = Field(
    "ranges",
    Kind(_read_ranges, {"type": "array", "items": _NUMBERS, "minItems": 2, "maxItems": 2}),
    "options.ranges",
    "The lowest and the highest number of each dimension, which become 0 and 255 in uint8, and -128 and 127 in int8.",
)


def adapt_vectors(question: Question, manifest: Manifest) -> None:
    """Set the options that depend on the model, and check that the ranges fit the vectors of the reply.

    Raises:
        InvalidInput: as in `adapt_to_model`; or the ranges have another number of dimensions than the vectors, or the
            reply has no int8 or uint8.
    """
    adapt_to_model(question, manifest)
    ranges = question.options.get("ranges")
    if ranges is None:
        return
    if {"int8", "uint8"}.isdisjoint(question.options.get("forms", ())):
        raise InvalidInput("ranges belong to int8 and uint8: ask for one of them, or leave ranges out", field="ranges")
    width, given = question.encode.output.dimensions or manifest.width, len(ranges[0])
    if given != width:
        problem = f"ranges have {given} dimensions, and the vectors {width}"
        raise InvalidInput(f"{problem}: send {width} numbers in each list", field="ranges", limit=width, actual=given)


def write_vectors(question: Question, vectors: NDArray[np.float32]) -> dict[str, list[Any]]:
    """Return vectors [n, width] in each form that the question asks for, by form."""
    ranges = question.options.get("ranges")
    if ranges is not None:
        ranges = np.array(ranges, np.float32)
    return {form: _write(vectors, form, ranges) for form in question.options.get("forms") or ("float",)}


def write_form(question: Question, vectors: NDArray[np.float32]) -> list[Any]:
    """Return vectors [n, width] in the only form that the question asks for."""
    (rows,) = write_vectors(question, vectors).values()
    return rows


def _write(vectors: NDArray[np.float32], form: str, ranges: NDArray[np.float32] | None) -> list[Any]:
    if form == "base64":
        return [b64encode(vector.tobytes()).decode() for vector in vectors]
    return list(json_rows(vectors if form == "float" else quantized(vectors, form, ranges)))


def quantized(vectors: NDArray[np.float32], form: str, ranges: NDArray[np.float32] | None = None) -> NDArray[Any]:
    """Return vectors [n, width] as int8 or uint8, [n, width] or, in the forms of one bit, [n, ⌈width / 8⌉].

    With `ranges` [2, width], the lowest and the highest number of each dimension, numbers become steps as in
    sentence-transformers' `quantize_embeddings`; numbers outside become the lowest or the highest step.
    """
    if form.endswith("binary"):
        unsigned = np.packbits(vectors > 0, axis=-1)
    elif ranges is None:
        unsigned = quantize_rows(vectors)[0].view(np.uint8) ^ _HIGHEST_BIT
    else:
        step = (ranges[1] - ranges[0]) / _STEPS
        unsigned = ((vectors - ranges[0]) / np.where(step == 0, 1, step)).clip(0, _STEPS).astype(np.uint8)
    return unsigned if form.startswith("u") else (unsigned ^ _HIGHEST_BIT).view(np.int8)
