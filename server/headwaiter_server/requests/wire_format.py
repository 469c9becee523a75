"""Write bytes of Protobuf's wire format where this avoids a copy or a loop."""

_LENGTH_DELIMITED = 2


def field_tag(number: int, length: int) -> bytes:
    """Return the tag and the length that precede the `length` bytes of a field."""
    tag = [number << 3 | _LENGTH_DELIMITED]
    while length > 0x7F:
        tag.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([*tag, length])
