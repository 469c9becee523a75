"""Read the fields of a JSON request. Pure functions."""

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import orjson

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import MAX_QUOTED_CHARACTERS, HeadwaiterError, InvalidInput

_Choice = TypeVar("_Choice")
_HIGHEST_NUMBER = 2**31 - 1
# Fields of headwaiter.v1 that hold the sequences, and their fields in JSON.
_INPUT_FIELDS = {
    **dict.fromkeys(("tokens", "tokens.data", "tokens.lengths", "texts", "texts.values"), "input"),
    "pairs": "documents",
    "pairs.first": "query",
    "pairs.second": "documents",
}
# Parsing takes at most about 3 ms for a body of this size, whatever it holds.
_SMALL_BYTES = 64 << 10
_QUOTE = ord('"')
# Each of these characters, outside of texts, stands before at most one value.
_BEFORE_VALUE = np.zeros(256, np.bool_)
_BEFORE_VALUE[list(b",[{")] = True


class JsonFields:
    """The fields of a JSON object, read by name; an absent field and `null` are the same.

    Args:
        raw: the bytes of the object.
        known: names of the fields that the request may have.

    Raises:
        InvalidInput: the bytes are not a JSON object, or the object has another field.
    """

    def __init__(self, raw: bytes, known: tuple[str, ...]) -> None:
        try:
            values = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            raise InvalidInput(f"the body is not JSON ({error}): send a JSON object") from None
        if not isinstance(values, dict):
            raise InvalidInput(f"the body is {_kind(values)}: send a JSON object")
        for name in sorted(values.keys() - set(known)):
            shown = name[:MAX_QUOTED_CHARACTERS]
            raise InvalidInput(f"{shown!r} is unknown: leave it out, or use one of {', '.join(known)}", field=shown)
        self._values: Mapping[str, Any] = values

    def value(self, name: str) -> Any:
        """Return the value of a field, of any type; None if the field is absent."""
        return self._values.get(name)

    def text(self, name: str, default: str = "") -> str:
        """Return the text of a field."""
        return str(self._typed(name, str, "a text", default))

    def boolean(self, name: str, *, default: bool) -> bool:
        """Return the boolean of a field."""
        return bool(self._typed(name, bool, "true or false", default))

    def whole_number(self, name: str) -> int:
        """Return the whole number of a field, at least 1; 0 if the field is absent."""
        value = self._typed(name, int, "a whole number", None)
        if value is None:
            return 0
        if not 1 <= value <= _HIGHEST_NUMBER:
            raise InvalidInput(f"{name} is {value}: send a number from 1 to {_HIGHEST_NUMBER}", field=name)
        return int(value)

    def seconds(self, name: str) -> float:
        """Return the seconds of a field, 0 if it is absent."""
        value = self._values.get(name)
        if value is None:
            return 0.0
        if type(value) not in (int, float) or not 0 < value < float("inf"):
            raise InvalidInput(f"{name} is {_shown(value)}: send a finite number of seconds above 0", field=name)
        return float(value)

    def choice(self, name: str, choices: Mapping[str, _Choice]) -> _Choice:
        """Return what a word stands for; the first of the choices if the field is absent."""
        word = self.text(name, next(iter(choices)))
        if word not in choices:
            raise InvalidInput(f"{name} is {_shown(word)}: send one of {', '.join(choices)}", field=name)
        return choices[word]

    def _typed(self, name: str, kind: type, wanted: str, default: Any) -> Any:
        value = self._values.get(name)
        if value is None:
            return default
        # In Python, true and false are numbers too.
        if type(value) is not kind:
            raise InvalidInput(f"{name} is {_kind(value)}: send {wanted}", field=name)
        return value


def error_in_json(error: HeadwaiterError) -> tuple[str, str | None]:
    """Return the message and the field of an error, with the names that fields have in JSON."""
    if not error.field:
        return str(error), None
    if error.field in _INPUT_FIELDS:
        return str(error), _INPUT_FIELDS[error.field]
    name = error.field.rpartition(".")[2]  # Options have no path in JSON.
    return str(error).replace(error.field, name), name


def fill_input(request: pb.EncodeRequest, value: Any, field: str) -> None:
    """Fill in the sequences of a request: one text, several texts, the ids of one sequence, or of several.

    Raises:
        InvalidInput: the value has another form.
    """
    # The interfaces whose forms HTTP takes refuse the empty text.
    texts = value if isinstance(value, list) else [value]
    if "" in texts:
        index = texts.index("")
        raise InvalidInput(
            f"sequence {index} of {field} is empty: send a text of at least one character", field=field, sequence=index
        )
    if isinstance(value, str):
        request.texts.values.append(value)
    elif isinstance(value, list) and value and all(type(each) is str for each in value):
        request.texts.values.extend(value)
    elif isinstance(value, list) and value and all(type(each) is int for each in value):
        _fill_ids(request, [value], field)
    elif isinstance(value, list) and value and all(type(each) is list for each in value):
        _fill_ids(request, value, field)
    else:
        found = "an empty list" if value == [] else "absent" if value is None else "a list of mixed types"
        found = found if value is None or isinstance(value, list) else _kind(value)
        raise InvalidInput(
            f"{field} is {found}: send a text, a list of texts, a list of token ids, or a list of lists of token ids",
            field=field,
        )


def _fill_ids(request: pb.EncodeRequest, sequences: list[list[Any]], field: str) -> None:
    for index, sequence in enumerate(sequences):
        if not all(type(each) is int for each in sequence):
            raise InvalidInput(
                f"sequence {index} of {field} has a value that is not a whole number: send token ids",
                field=field,
                sequence=index,
            )
    try:
        ids = np.array([each for sequence in sequences for each in sequence], "<i8")
    except OverflowError:
        raise InvalidInput(f"{field} has a number above 2^63: send token ids of the model", field=field) from None
    request.tokens.dtype = pb.DATA_TYPE_INT64
    request.tokens.data = ids.tobytes()
    request.tokens.lengths.extend(map(len, sequences))


def _kind(value: Any) -> str:
    """Return the JSON type of a value, in words."""
    names = {bool: "true or false", str: "a text", list: "a list", dict: "an object", type(None): "null"}
    return names.get(type(value), "a number")


def _shown(value: Any) -> str:
    return repr(value)[:MAX_QUOTED_CHARACTERS]


def check_value_count(raw: bytes, max_values: int) -> None:
    """Check the number of values in a JSON body before the body is parsed.

    The parser holds Python's global lock: 300,000 empty lists in a body of 1 MB stop all threads for 0.2 s. The time
    grows with the number of values, which is small in every valid request. numpy counts them without the lock.

    Raises:
        InvalidInput: the body has more than `max_values` values.
    """
    if len(raw) > _SMALL_BYTES and (values := count_values(raw)) > max_values:
        raise InvalidInput(
            f"the body has about {values} values, and no valid request has more than {max_values}: split the request",
            limit=max_values,
        )


def count_values(raw: bytes) -> int:
    """Return the number of characters before values in JSON: commas and opening brackets outside of texts."""
    if b"\\" in raw:
        raw = raw.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    characters = np.frombuffer(raw, np.uint8)
    # A character is inside a text if an odd number of quotes stands before it. An overflow does not change the parity.
    inside_text = np.cumsum(characters == _QUOTE, dtype=np.uint8) & 1
    return int(np.count_nonzero(_BEFORE_VALUE[characters] > inside_text))
