"""The error of a text that is not Unicode, such as a text that was cut inside an emoji.

UTF-16, the form of texts in JavaScript and Java, writes an emoji as two halves. UTF-8 has no form for one half.
"""

import json
import re
from typing import Any

from headwaiter_proto.rules.errors import MAX_QUOTED_CHARACTERS, InvalidInput

# Half an emoji in UTF-8, if UTF-8 had one; and in JSON, as an escape or in this form.
_HALF = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")
_HALF_IN_JSON = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")
# Python's error handler surrogateescape puts these in the place of bytes that it cannot decode.
_FIRST_BYTE, _LAST_BYTE = "\udc80", "\udcff"


def not_unicode(
    fault: UnicodeDecodeError | UnicodeEncodeError, name: str, field: str | None, sequence: int | None = None
) -> InvalidInput:
    """Return the error of a text that cannot be decoded from UTF-8, or encoded.

    Args:
        fault: why the text cannot be decoded or encoded.
        name: what the message calls the text, or where it is in the sequence.
        field: as in HeadwaiterError.
        sequence: as in HeadwaiterError.
    """
    position, half = fault.start, ""
    if isinstance(fault, UnicodeEncodeError):
        half = fault.object[position]
    elif found := _HALF.match(fault.object, position):
        position, half = len(fault.object[:position].decode()), found[0].decode("utf-8", "surrogatepass")
    problem = f"is not UTF-8 at byte {position}: send texts in UTF-8"
    if half:
        what, advice = "half an emoji", "cut texts between characters"
        if _FIRST_BYTE <= half <= _LAST_BYTE:
            what += " or a byte that was not UTF-8"
            advice += ", and decode bytes from their own encoding"
        problem = f"holds {what} (U+{ord(half):04X}) at character {position}: {advice}"
    return InvalidInput(f"{name} {problem}".lstrip(), field=field, sequence=sequence)


def check_json_texts(raw: bytes) -> None:
    """Raise the error of the first text that holds half an emoji, in JSON that a parser has refused.

    Raises:
        InvalidInput: a text holds half an emoji; the error names its field, and its index in a list.
    """
    if not _HALF_IN_JSON.search(raw):
        return
    try:
        values = json.loads(raw.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        return
    # A list that is the value of a field holds the sequences; lists and objects in such a list belong to one of them.
    waiting: list[tuple[str | None, int | None, Any]] = [(None, None, values)]
    while waiting:
        field, index, value = waiting.pop()
        if isinstance(value, dict):
            for key, each in reversed(value.items()):
                inside = isinstance(each, list) or index is None
                waiting.append((key, None, each) if inside else (field, index, each))
                waiting.append((field, index, key))
        elif isinstance(value, list):
            numbered = reversed(list(enumerate(value)))
            waiting += [(field, number if index is None else index, each) for number, each in numbered]
        elif isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError as fault:
                shown = field and field[:MAX_QUOTED_CHARACTERS]
                name = "the body" if shown is None else repr(shown)
                name = name if index is None else f"of {name}"
                raise not_unicode(fault, name, shown, index) from None
