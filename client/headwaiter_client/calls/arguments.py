"""Check arguments before anything is sent: Python types, lists, deadlines, and that texts are Unicode."""

import math
from collections.abc import AsyncIterable, Iterable, Mapping
from contextlib import suppress
from types import UnionType
from typing import SupportsFloat

import numpy as np

from headwaiter_proto.rules.errors import InvalidInput
from headwaiter_proto.rules.unicode import not_unicode

_NOT_LISTS = (bytes, bytearray, memoryview, Mapping, set, frozenset)


def check_type(name: str, value: object, accepted: type | UnionType, description: str) -> None:
    """Raise a `TypeError` unless the argument `name` has an accepted type; `description` says which types these are.

    The message shows the type of the value but never the value, because the value may be a secret.
    """
    if not isinstance(value, accepted):
        raise TypeError(f"{name} is of type {type(value).__name__}: pass {description}")


def checked_timeout_s(timeout_s: object) -> float:
    """Return the timeout of a call as a float.

    Raises:
        InvalidInput: the timeout is not a finite number of seconds above 0.
    """
    # A bool is a number in Python, but a mistake here.
    if isinstance(timeout_s, SupportsFloat) and not isinstance(timeout_s, bool | np.bool_):
        with suppress(TypeError, OverflowError):  # An array of several numbers; an int beyond the largest float.
            seconds = float(timeout_s)
            if 0 < seconds < math.inf:
                return seconds
    raise InvalidInput(
        f"timeout_s is {timeout_s!r}: pass a finite number of seconds above 0, or leave timeout_s out",
        field="timeout_s",
    )


def check_is_list(sequences: object, *, accepts_async: bool) -> None:
    """Raise `InvalidInput` unless `sequences` is an iterable, or an async iterable if `accepts_async` is true."""
    if isinstance(sequences, list):
        return
    if isinstance(sequences, str):
        raise InvalidInput("texts is a single str: pass a list of texts, such as [text]", field="texts")
    if accepts_async and isinstance(sequences, AsyncIterable):
        return
    kind = type(sequences).__name__
    if hasattr(sequences, "columns") and hasattr(sequences, "shape"):  # pandas, polars and pyarrow
        raise InvalidInput(
            f"the sequences are a table of type {kind}, which lists the names of its columns: pass one column, such as "
            'table["text"]'
        )
    if isinstance(sequences, AsyncIterable) and not isinstance(sequences, Iterable):
        raise InvalidInput(
            f"the sequences are of type {kind}, which is asynchronous: pass a list, such as [one async for one in "
            "sequences], or use AsyncClient.encode_stream"
        )
    # A dict or a set is iterable but probably a mistake: a dict yields only its keys, and a set has no order. An array
    # without dimensions has the type of an iterable, but cannot be iterated.
    without_dimensions = isinstance(sequences, np.ndarray) and sequences.ndim == 0
    if isinstance(sequences, _NOT_LISTS) or without_dimensions or not isinstance(sequences, Iterable):
        raise InvalidInput(f"the sequences are of type {kind}: pass a list of sequences")


def check_unicode(name: str, text: str, *, field: str, sequence: int | None = None) -> None:
    """Raise `InvalidInput` unless a text can be encoded as UTF-8. The message begins with `name`."""
    try:
        text.encode()
    except UnicodeEncodeError as fault:
        if sequence is not None:
            raise not_unicode(fault, name, field, sequence) from fault
        raise InvalidInput(
            f"{name} is not Unicode text ({fault}): remove the characters that UTF-8 cannot encode", field=field
        ) from fault
