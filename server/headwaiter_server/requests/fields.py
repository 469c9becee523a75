"""The fields of JSON bodies, and parameters over gRPC, in tables that read their values and describe them.

A field says where its value goes: into the request of headwaiter.v1, or into the options of the question. The value of
a field without such a place is checked and then ignored. Pure functions.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import MAX_QUOTED_CHARACTERS, HeadwaiterError, InvalidInput

Schema = dict[str, Any]

_HIGHEST_NUMBER = 2**31 - 1
# Fields of headwaiter.v1 that hold the sequences, and the place that fills them.
_PLACES = {
    **dict.fromkeys(("tokens", "tokens.data", "tokens.lengths", "texts", "texts.values"), "input"),
    "pairs": "pairs.second",
}


@dataclass(slots=True)
class Question:
    """What a body asks.

    Attributes:
        encode: the request in the form of headwaiter.v1.
        options: what the body says besides, by name: the form of the reply, and what depends on the model.
        names: the field of the body that filled a place.
    """

    encode: pb.EncodeRequest
    options: dict[str, Any] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Kind:
    """The values that a field may have.

    Attributes:
        read: returns what a value means; raises InvalidInput, given the field's name, if the field cannot have it.
        schema: the values in JSON Schema.
    """

    read: Callable[[Any, str], Any]
    schema: Schema


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a JSON object; `null` and an absent field are the same.

    Attributes:
        name: the field's name.
        kind: the values that the field may have.
        place: where the value goes: a path in EncodeRequest, `input` for texts or token ids, `options.` and a name in
            `Question.options`, or empty for a field without effect.
        about: what the field does.
        required: whether the body must have the field.
        default: the value if the field is absent; None leaves the place as it is.
        fields: the fields of the object that is the value, if it is an object.
    """

    name: str
    kind: Kind
    place: str = ""
    about: str = ""
    required: bool = False
    default: Any = None
    fields: tuple["Field", ...] = ()


def group(name: str, fields: tuple[Field, ...], *, required: bool = False) -> Field:
    """Return a field whose value is an object with these fields."""
    return Field(name, Kind(_read_group, object_schema(fields)), required=required, fields=fields)


def ignored(name: str, kind: Kind) -> Field:
    """Return a field that clients send and that cannot change numbers."""
    return Field(name, kind, about="No effect.")


def fill(question: Question, fields: tuple[Field, ...], values: Mapping[str, Any]) -> None:
    """Write the values of a JSON object into a question.

    Raises:
        InvalidInput: the object has another field that is not null, lacks a field, or a field has a value that it
            cannot have.
    """
    _fill(question, fields, values, {})


def _fill(
    question: Question, fields: tuple[Field, ...], values: Mapping[str, Any], filled: dict[str, tuple[str, Any]]
) -> None:
    known = [each.name for each in fields]
    for name in sorted(name for name in values.keys() - set(known) if values[name] is not None):
        shown = name[:MAX_QUOTED_CHARACTERS]
        raise InvalidInput(f"{shown!r} is unknown: leave it out, or use one of {', '.join(known)}", field=shown)
    for each in fields:
        given = values.get(each.name)
        if given is None:
            if each.required:
                raise InvalidInput(f"{each.name} is absent: send {_words(each.kind)}", field=each.name)
            if each.default is None or each.place in filled:
                continue
            value = each.default
        else:
            value = each.kind.read(given, each.name)
            other, same = filled.setdefault(each.place, (each.name, value)) if each.place else ("", value)
            question.names[each.place] = other
            if same != value:
                raise InvalidInput(f"{other} and {each.name} contradict each other: send one of them", field=each.name)
        if each.fields:
            _fill(question, each.fields, value, filled)
        elif each.place:
            _put(question, each.place, value, each.name)


def _put(question: Question, place: str, value: Any, name: str) -> None:
    request = question.encode
    first, _, rest = place.partition(".")
    if place == "input":
        (request.texts if isinstance(value, pb.Texts) else request.tokens).MergeFrom(value)
    elif first == "options":
        question.options[rest] = value
    elif place == "texts.prompt" and not request.HasField("texts"):
        if not value:
            return
        raise InvalidInput(f"{name} belongs to texts, and the request has token ids: leave {name} out", field=name)
    elif first == "pairs":
        getattr(request.pairs, rest).extend(value)
    else:
        *path, last = place.split(".")
        message: Any = request
        for step in path:
            message = getattr(message, step)
        setattr(message, last, value)


def name_field(error: HeadwaiterError, fields: Iterable[Field], names: Mapping[str, str]) -> tuple[str, str | None]:
    """Return the message and the field of an error, with the names that fields have in a body.

    Args:
        error: the error.
        fields: the fields that the body may have.
        names: the field of the body that filled a place.
    """
    if not error.field:
        return str(error), None
    place = _PLACES.get(error.field, error.field)
    named = [*filter(None, [names.get(place)]), *(each.name for each in leaves(fields) if each.place == place)]
    # An option without a field in this body keeps the last part of its path.
    name = named[0] if named else error.field.rpartition(".")[2]
    return str(error).replace(error.field, name) if "." in error.field else str(error), name


def leaves(fields: Iterable[Field]) -> Iterator[Field]:
    """Yield the fields of an object and of the objects in it, without those whose values are objects."""
    for each in fields:
        if each.fields:
            yield from leaves(each.fields)
        else:
            yield each


def object_schema(fields: tuple[Field, ...]) -> Schema:
    """Return the JSON Schema of an object with these fields."""
    schema: Schema = {
        "type": "object",
        "properties": {each.name: _field_schema(each) for each in fields},
        # Clients write null for options that nobody set, also for options that another server has.
        "additionalProperties": {"type": "null"},
    }
    required = [each.name for each in fields if each.required]
    return {**schema, "required": required} if required else schema


def _field_schema(described: Field) -> Schema:
    schema = described.kind.schema
    if not described.required:
        schema = {"anyOf": [schema, {"type": "null"}]}
    return {**schema, "description": described.about} if described.about else schema


def _read_group(value: Any, name: str) -> Any:
    return typed(value, name, dict, "an object")


def typed(value: Any, name: str, kind: type, wanted: str) -> Any:
    """Return a value of a Python type.

    Raises:
        InvalidInput: the value has another type.
    """
    # In Python, true and false are numbers too.
    if type(value) is not kind:
        raise InvalidInput(f"{name} is {kind_of(value)}: send {wanted}", field=name)
    return value


def _words(kind: Kind) -> str:
    return str(kind.schema.get("description", "a value"))


def _read_text(value: Any, name: str) -> str:
    return str(typed(value, name, str, "a text"))


def _read_seconds(value: Any, name: str) -> float:
    if type(value) not in (int, float) or not 0 < value < float("inf"):
        raise InvalidInput(f"{name} is {shown(value)}: send a finite number of seconds above 0", field=name)
    return float(value)


TEXT = Kind(_read_text, {"type": "string"})
BOOLEAN = Kind(
    lambda value, name: typed(value, name, bool, "true or false"),
    {"type": "boolean"},
)
SECONDS = Kind(_read_seconds, {"type": "number", "exclusiveMinimum": 0})
# A value that is not looked at.
ANYTHING = Kind(lambda value, _: value, {})


def whole_number(least: int) -> Kind:
    """Return the kind of a whole number of at least `least`."""

    def read(value: Any, name: str) -> int:
        # In JSON Schema, 3.0 is a whole number.
        whole = int(value) if type(value) is float and value.is_integer() else value
        number = int(typed(whole, name, int, "a whole number"))
        if number < least:
            raise InvalidInput(f"{name} is {number}: send a whole number of at least {least}", field=name)
        if number > _HIGHEST_NUMBER:
            raise InvalidInput(f"{name} is above {_HIGHEST_NUMBER}: send a smaller number", field=name)
        return number

    return Kind(read, {"type": "integer", "minimum": least, "maximum": _HIGHEST_NUMBER})


WHOLE_NUMBER = whole_number(1)


def one_of(choices: Mapping[Any, Any]) -> Kind:
    """Return the kind of a value that is one of these; each choice maps to what it means."""
    # In Python, true equals 1.
    meanings = {(type(choice), choice): meaning for choice, meaning in choices.items()}

    def read(value: Any, name: str) -> Any:
        key = (type(value), value)
        if isinstance(value, list | dict) or key not in meanings:
            words = ", ".join(orjson.dumps(each).decode() if not isinstance(each, str) else each for each in choices)
            raise InvalidInput(f"{name} is {shown(value)}: send one of {words}", field=name)
        return meanings[key]

    return Kind(read, {"enum": list(choices)})


def list_of(kind: Kind) -> Kind:
    """Return the kind of a list of values."""

    def read(values: Any, name: str) -> list[Any]:
        return [kind.read(value, name) for value in typed(values, name, list, "a list")]

    return Kind(read, {"type": "array", "items": kind.schema})


def kind_of(value: Any) -> str:
    """Return the JSON type of a value, in words."""
    names = {bool: "true or false", str: "a text", list: "a list", dict: "an object", type(None): "null"}
    return names.get(type(value), "a number")


def shown(value: Any) -> str:
    """Return a value as an error quotes it."""
    # Lists may be large, and nested deeper than Python can write.
    return kind_of(value) if isinstance(value, list | dict) else repr(value)[:MAX_QUOTED_CHARACTERS]
