"""Read large messages without stalling the event loop.

Protobuf's parser holds Python's global lock, so a thread alone does not help: 16 MiB of empty strings would stop all
threads for 0.2 s. The time grows with the number of fields, which is small in every valid request. A thread therefore
counts the fields of a large message first; counting lets other threads run.
"""

import asyncio
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from headwaiter_proto.rules.errors import InvalidInput
from headwaiter_proto.rules.requests import parse
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

_Message = TypeVar("_Message", bound=Message)


async def parse_request(raw: bytes, message: _Message, max_sequences: int, more_fields: int = 0) -> _Message:
    """Fill a message from its bytes and return it; a large message is read in a thread.

    Args:
        raw: the bytes.
        message: an empty message.
        max_sequences: maximum number of sequences of a valid request.
        more_fields: fields that a valid request may have besides those of its sequences.

    Raises:
        InvalidInput: the bytes are not a message of this type, or have far more fields than a valid request.
    """
    if len(raw) <= LARGE_BYTES:
        return parse(raw, message)
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(LARGE_MESSAGES, _parse_large, raw, message, max_sequences, more_fields)


def _parse_large(raw: bytes, message: _Message, max_sequences: int, more_fields: int) -> _Message:
    max_fields = 2 * max_sequences + more_fields + _MORE_FIELDS
    if count_fields(raw, message.DESCRIPTOR, max_fields) > max_fields:
        raise InvalidInput(
            f"the request has more than {max_fields} fields; the server accepts at most {max_sequences} sequences: "
            "split the request",
            limit=max_sequences,
        )
    return parse(raw, message)


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
