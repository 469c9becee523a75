"""Read large messages without stalling the event loop, and messages with texts that are not UTF-8.

Protobuf's parser holds Python's global lock, so a thread alone does not help: 16 MiB of empty strings would stop all
threads for 0.2 s. The time grows with the number of fields, which is small in every valid request. A thread therefore
counts the fields of a large message first; counting lets other threads run.

The parser refuses a whole message for one text that is not UTF-8. Such a text gets other bytes, and its error goes into
the call: the other texts of a partial request are answered, and a stream goes on.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from operator import attrgetter
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from headwaiter_proto.rules.errors import InvalidInput
from headwaiter_proto.rules.requests import parse
from headwaiter_proto.rules.unicode import not_unicode
from headwaiter_server.requests.call import Call
from headwaiter_server.requests.threads import LARGE_MESSAGES

# Parsing takes at most about 3 ms for a message of this size.
LARGE_BYTES = 256 << 10
# Fields of a request that belong to no sequence, with room for later versions; a sequence has at most two fields.
_MORE_FIELDS = 10_000
# A number in a packed field takes at most this many bytes.
_LONGEST_VARINT_BYTES = 10
_VARINT, _FIXED64, _LENGTH_DELIMITED, _GROUP_START, _GROUP_END, _FIXED32 = range(6)
# The parser copies a packed field of these types all at once, so its numbers are not counted.
_FIXED_TYPES = {
    FieldDescriptor.TYPE_FLOAT,
    FieldDescriptor.TYPE_DOUBLE,
    FieldDescriptor.TYPE_FIXED32,
    FieldDescriptor.TYPE_FIXED64,
    FieldDescriptor.TYPE_SFIXED32,
    FieldDescriptor.TYPE_SFIXED64,
}
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4, _GROUP_START: 0, _GROUP_END: 0}
# The fields that hold the texts of sequences, and how a message goes on after "sequence 3" for such a text.
_FIRST_TEXTS = "pairs.first"
_TEXT_NAMES = {
    "texts.values": "",
    _FIRST_TEXTS: "in pairs.first",
    "pairs.second": "in pairs.second",
}
# Takes the place of each byte of a text that is not UTF-8.
_PLACEHOLDER = "?"

_Message = TypeVar("_Message", bound=Message)


async def parse_request(
    raw: bytes, message: _Message, call: Call, max_sequences: int, more_fields: int = 0
) -> _Message:
    """Fill a message from its bytes and return it; a large message, and one with broken texts, is read in a thread.

    Args:
        raw: the bytes.
        message: an empty message.
        call: gets the size of the request, and the errors of the texts that are not UTF-8.
        max_sequences: maximum number of sequences of a valid request.
        more_fields: fields that a valid request may have besides those of its sequences.

    Raises:
        InvalidInput: the bytes are not a message of this type, or have far more fields than a valid request; or a field
            that is no text of a sequence is not UTF-8.
    """
    call.request_bytes = len(raw)
    if len(raw) <= LARGE_BYTES:
        with suppress(InvalidInput):
            return parse(raw, message)
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(LARGE_MESSAGES, _parse_in_thread, raw, message, call, max_sequences, more_fields)


def _parse_in_thread(raw: bytes, message: _Message, call: Call, max_sequences: int, more_fields: int) -> _Message:
    max_fields = 2 * max_sequences + more_fields + _MORE_FIELDS
    if count_fields(raw, message.DESCRIPTOR, max_fields) > max_fields:
        raise InvalidInput(
            f"the request has more than {max_fields} fields; the server accepts at most {max_sequences} sequences: "
            "split the request",
            limit=max_sequences,
        )
    try:
        return parse(raw, message)
    except InvalidInput:
        repaired, errors = repair_texts(raw, message.DESCRIPTOR, max_fields)
        if not errors:
            raise
        parse(repaired, message)
    call.broken_texts = [each for error in errors for each in _located(error, message)]
    return message


def repair_texts(raw: bytes, descriptor: Any, max_fields: int) -> tuple[bytes, list[InvalidInput]]:
    """Return a message with placeholders for the texts that are not UTF-8, and the errors of these texts.

    Reading stops at a malformed field, and after `max_fields`.
    """
    repaired = bytearray(raw)
    errors, counts = [], Counter[str]()
    with suppress(IndexError, KeyError):
        for path, begin, end in islice(_fields(raw, 0, len(raw), descriptor, ""), max_fields):
            if not path:
                continue
            index, name = counts[path], _TEXT_NAMES.get(path)
            counts[path] += 1
            try:
                raw[begin:end].decode()
            except UnicodeDecodeError as fault:
                if name is None:
                    errors.append(not_unicode(fault, path, path))
                else:
                    errors.append(not_unicode(fault, name, path, index))
                repaired[begin:end] = _PLACEHOLDER.encode() * (end - begin)
    return bytes(repaired), errors


def _fields(raw: bytes, position: int, end: int, descriptor: Any, prefix: str) -> Iterator[tuple[str, int, int]]:
    """Yield the path, the begin and the end of each field in a message; the path is empty if the field is no text.

    Raises:
        IndexError, KeyError: the bytes are not a message.
    """
    while position < end:
        tag, position = _read_varint(raw, position)
        begin, wire_type, field = position, tag & 7, descriptor.fields_by_number.get(tag >> 3)
        if wire_type == _VARINT:
            _, position = _read_varint(raw, position)
        elif wire_type == _LENGTH_DELIMITED:
            length, begin = _read_varint(raw, position)
            position = min(begin + length, end)
        else:
            position += _FIXED_BYTES[wire_type]
        is_text = field and field.type == FieldDescriptor.TYPE_STRING and wire_type == _LENGTH_DELIMITED
        yield f"{prefix}{field.name}" if is_text else "", begin, position
        if field and field.message_type and wire_type == _LENGTH_DELIMITED:
            yield from _fields(raw, begin, position, field.message_type, f"{prefix}{field.name}.")


def _located(error: InvalidInput, message: Message) -> list[InvalidInput]:
    """Return the error of a broken text for each sequence that the text belongs to.

    Raises:
        InvalidInput: the text belongs to no sequence.
    """
    if error.sequence is None:
        raise error
    texts = attrgetter(str(error.field))(message)
    # If the bytes have an input twice, the parser may have kept only the last.
    if len(texts) <= error.sequence or texts[error.sequence].strip(_PLACEHOLDER):
        raise error
    if error.field != _FIRST_TEXTS or len(texts) > 1:
        return [error]
    pairs = range(len(attrgetter("pairs.second")(message)))
    return [InvalidInput(error.problem, sequence=index, field=error.field) for index in pairs] or [error]


def count_fields(raw: bytes, descriptor: Any, limit: int) -> int:
    """Return the number of fields in a message, or any number above `limit` if there are more than `limit`.

    A packed field of varints counts as the fewest numbers that its bytes can hold. Counting stops at a malformed field,
    which the parser refuses.
    """
    fields = 0
    parts: list[tuple[int, int, Any]] = [(0, len(raw), descriptor)]
    try:
        while parts and fields <= limit:
            position, end, kind = parts.pop()
            while position < end and fields <= limit:
                fields += 1
                tag, position = _read_varint(raw, position)
                wire_type = tag & 7
                if wire_type == _VARINT:
                    _, position = _read_varint(raw, position)
                elif wire_type == _LENGTH_DELIMITED:
                    length, position = _read_varint(raw, position)
                    field = kind.fields_by_number.get(tag >> 3) if kind else None
                    if field and field.message_type:
                        parts.append((position, min(position + length, end), field.message_type))
                    elif field and field.is_packed and field.type not in _FIXED_TYPES:
                        fields += length // _LONGEST_VARINT_BYTES
                    position += length
                else:
                    position += _FIXED_BYTES[wire_type]
    except (IndexError, KeyError):
        pass
    return fields


def _read_varint(raw: bytes, position: int) -> tuple[int, int]:
    """Return the number at a position, and the position after the number."""
    value = raw[position]
    if value < 0x80:
        return value, position + 1
    value &= 0x7F
    for shift in range(7, 64 + 7, 7):
        position += 1
        byte = raw[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
    return value, position + 1
