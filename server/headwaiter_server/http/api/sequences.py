"""The kinds of fields that hold texts or token ids. Pure functions."""

from typing import Any

import numpy as np

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import InvalidInput
from headwaiter_server.requests.fields import TEXT, Kind, Schema, kind_of, typed


def _read_input(value: Any, name: str) -> pb.Texts | pb.TokenSequences:
    """Return one text, several texts, the ids of one sequence, or those of several."""
    if isinstance(value, str):
        return pb.Texts(values=[value])
    if not isinstance(value, list) or not value:
        found = "an empty list" if value == [] else kind_of(value)
        raise InvalidInput(f"{name} is {found}: send {_INPUT_STRING}", field=name)
    first = type(value[0])
    for index, each in enumerate(value):
        if type(each) is not first or first not in (str, int, list):
            problem = f"of {name} is {kind_of(each)}"
            problem += f", and the first is {kind_of(value[0])}" if index else ""
            raise InvalidInput(f"{problem}: send {_INPUT_STRING}", field=name, sequence=index)
    if first is str:
        return pb.Texts(values=value)
    return _token_ids([value] if first is int else value, name)


_IDS_STRING = "a list of token ids, or a list of lists of token ids"
_INPUT_STRING = f"a text, a list of texts, {_IDS_STRING}"
_ID = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
# A text may be empty: the rules of headwaiter.v1 decide, as for every other door.
_ONE_TEXT: Schema = {"type": "string"}
_TEXT_LIST: Schema = {"type": "array", "items": _ONE_TEXT, "minItems": 1}
_IDS: Schema = {"type": "array", "items": _ID, "minItems": 1}
_ID_LISTS: Schema = {"type": "array", "items": {"type": "array", "items": _ID}, "minItems": 1}
INPUT = Kind(
    _read_input,
    {
        "anyOf": [_ONE_TEXT, _TEXT_LIST, _IDS, _ID_LISTS],
        "description": _INPUT_STRING,
    },
)


def _token_ids(sequences: list[list[Any]], name: str) -> pb.TokenSequences:
    for index, sequence in enumerate(sequences):
        if not all(type(each) is int for each in sequence):
            problem = f"of {name} has a value that is not a whole number: send token ids"
            raise InvalidInput(problem, field=name, sequence=index)
    try:
        ids = np.array([each for sequence in sequences for each in sequence], "<i8")
    except OverflowError:
        raise InvalidInput(f"{name} has a number above 2^63: send token ids of the model", field=name) from None
    return pb.TokenSequences(dtype=pb.DATA_TYPE_INT64, data=ids.tobytes(), lengths=map(len, sequences))


def _read_ids(value: Any, name: str) -> pb.TokenSequences:
    """Return the ids of one sequence, or those of several."""
    sequences = typed(value, name, list, _IDS_STRING)
    if not any(isinstance(each, list) for each in sequences):
        return _token_ids([sequences], name)
    for index, each in enumerate(sequences):
        if not isinstance(each, list):
            problem = f"of {name} is {kind_of(each)}, and others are lists"
            raise InvalidInput(f"{problem}: send {_IDS_STRING}", field=name, sequence=index)
    return _token_ids(sequences, name)


def _read_one_list_of_ids(value: Any, name: str) -> pb.TokenSequences:
    return _token_ids([typed(value, name, list, "a list of token ids")], name)


def _read_texts(value: Any, name: str) -> pb.Texts:
    texts = _read_documents(value, name)
    if texts != value:
        raise InvalidInput(f"{name} has a value that is an object: send texts", field=name)
    return pb.Texts(values=texts)


def _read_one_text_or_several(value: Any, name: str) -> pb.Texts:
    return _read_one_text(value, name) if isinstance(value, str) else _read_texts(value, name)


def _read_one_text(value: Any, name: str) -> pb.Texts:
    return pb.Texts(values=[TEXT.read(value, name)])


def _read_query(value: Any, name: str) -> list[str]:
    return [TEXT.read(value, name)]


def _read_documents(value: Any, name: str) -> list[str]:
    """Return texts, of a list of texts or of objects with the field `text`."""
    if not isinstance(value, list) or not value:
        found = "an empty list" if value == [] else kind_of(value)
        raise InvalidInput(f"{name} is {found}: send a list of texts", field=name)
    texts: list[Any] = [each.get("text") if isinstance(each, dict) else each for each in value]
    for index, text in enumerate(texts):
        if type(text) is not str:
            problem = f"of {name} is {kind_of(value[index])}"
            raise InvalidInput(f"{problem}: send a text, or an object with the field text", field=name, sequence=index)
    return texts


_WITH_TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
TEXTS = Kind(_read_texts, {**_TEXT_LIST, "description": "a list of texts"})
ONE_TEXT_OR_SEVERAL = Kind(
    _read_one_text_or_several, {"anyOf": [_ONE_TEXT, _TEXT_LIST], "description": "a text, or a list of texts"}
)
TOKEN_IDS = Kind(
    _read_ids,
    {"anyOf": [{"type": "array", "items": _ID}, _ID_LISTS], "description": _IDS_STRING},
)
ONE_LIST_OF_IDS = Kind(_read_one_list_of_ids, {"type": "array", "items": _ID, "description": "a list of token ids"})
ONE_TEXT = Kind(_read_one_text, {**_ONE_TEXT, "description": "a text"})
QUERY = Kind(_read_query, {**_ONE_TEXT, "description": "a text"})
DOCUMENTS = Kind(
    _read_documents,
    {
        "type": "array",
        "items": {"anyOf": [{"type": "string"}, _WITH_TEXT]},
        "minItems": 1,
        "description": "a list of texts, or of objects with the field text",
    },
)
