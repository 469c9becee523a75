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
        read: returns what a value means; raises InvalidInput, given the field's name, if the field cannot have it, or
            Unimplemented if the server does not offer what the value asks for.
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
        fields: the fields of the object that is the value, or of the objects in the list that is the value.
    """

    name: str
    kind: Kind
    place: str = ""
    about: str = ""
    required: bool = False
    default: Any = None
    fields: tuple["Field", ...] = ()


def group(name: str, fields: tuple[Field, ...], place: str = "", about: str = "", *, required: bool = False) -> Field:
    """Return a field whose value is an object with these fields; with a place, the object is put there and not read."""
    return Field(name, Kind(_read_group, object_schema(fields)), place, about, required, fields=fields)


def groups(name: str, fields: tuple[Field, ...], place: str, about: str, *, required: bool = False) -> Field:
    """Return a field whose value is a list of objects with these fields; each object becomes its options."""

    def read(values: Any, name: str) -> list[dict[str, Any]]:
        objects = enumerate(typed(values, name, list, "a list of objects"))
        return [read_record(fields, each, f"{name}[{index}]") for index, each in objects]

    schema = {"type": "array", "items": object_schema(fields), "description": "a list of objects"}
    return Field(name, Kind(read, schema), place, about, required, fields=fields)


def ignored(name: str, kind: Kind) -> Field:
    """Return a field that clients send and that cannot change numbers."""
    return Field(name, kind, about="No effect.")


def fill(question: Question, fields: tuple[Field, ...], values: Mapping[str, Any], owner: str = "") -> None:
    """Write the values of a JSON object into a question.

    Args:
        question: the question.
        fields: the fields that the object may have.
        values: the object.
        owner: what errors call the object; empty for the body.

    Raises:
        InvalidInput: the object has another field that is not null, lacks a field, or a field has a value that it
            cannot have.
        Unimplemented: the server does not offer what a field asks for.
    """
    _fill(question, fields, values, owner, {})


def read_record(fields: tuple[Field, ...], value: Any, owner: str = "") -> dict[str, Any]:
    """Return the options of a JSON object all of whose fields go into options; see `fill`."""
    question = Question(pb.EncodeRequest())
    fill(question, fields, typed(value, owner, dict, "an object"), owner)
    return question.options


def _fill(
    question: Question,
    fields: tuple[Field, ...],
    values: Mapping[str, Any],
    owner: str,
    filled: dict[str, tuple[str, Any]],
) -> None:
    known = {each.name for each in fields}
    for unknown in sorted(name for name in values.keys() - known if values[name] is not None):
        shown = unknown[:MAX_QUOTED_CHARACTERS]
        problem = f"{shown!r} is unknown{f' in {owner}' if owner else ''}"
        useful = ", ".join(each.name for each in fields if each.place or each.fields)
        raise InvalidInput(f"{problem}: leave it out, or use one of {useful}", field=owner or shown)
    for each in fields:
        given, name = values.get(each.name), f"{owner}.{each.name}" if owner else each.name
        if given is None:
            if each.required:
                raise InvalidInput(f"{name} is absent: send {_words(each.kind)}", field=name)
            if each.default is None or each.place in filled:
                continue
            value = each.default
        else:
            value = each.kind.read(given, name)
            other, same = filled.setdefault(each.place, (name, value)) if each.place else ("", value)
            question.names[each.place] = other
            if same != value:
                raise InvalidInput(f"{other} and {name} contradict each other: send one of them", field=name)
        if each.place:
            _put(question, each.place, value, name)
        elif each.fields:
            # In the body itself, an option has one name, whether it stands in an object of options or beside it.
            _fill(question, each.fields, value, owner and name, filled)


def _put(question: Question, place: str, value: Any, name: str) -> None:
    request = question.encode
    first, _, rest = place.partition(".")
    if place == "input":
        (request.texts if isinstance(value, pb.Texts) else request.tokens).MergeFrom(value)
    elif first == "options":
        question.options[rest] = value
    elif isinstance(value, list):
        getattr(request.pairs, rest).extend(value)
    elif first in ("texts", "pairs") and not request.HasField(first):
        if not value:
            return
        problem = f"{name} belongs to {first}, and the request has {request.WhichOneof('input')}"
        raise InvalidInput(f"{problem}: leave {name} out", field=name)
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
        raise InvalidInput(f"{name} is {shown(value)}: send {wanted}", field=name)
    return value


def _words(kind: Kind) -> str:
    schema = kind.schema
    words = {"string": "a text", "array": "a list"}.get(schema.get("type", ""), "a value")
    return str(schema.get("description", words))


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


def whole_number(least: int, most: int = _HIGHEST_NUMBER) -> Kind:
    """Return the kind of a whole number from `least` to `most`."""

    def read(value: Any, name: str) -> int:
        # In JSON Schema, 3.0 is a whole number.
        whole = int(value) if type(value) is float and value.is_integer() else value
        if type(whole) is not int or not least <= whole <= most:
            raise InvalidInput(f"{name} is {shown(value)}: send a whole number from {least} to {most}", field=name)
        return whole

    return Kind(read, {"type": "integer", "minimum": least, "maximum": most})


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
