"""Changes of each field of a checkpoint's JSON files, and the checkpoints that they damage."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_MISSING = object()
# Deeper fields of a file are left as they are.
_MOST_DEPTH = 3


def changes(value: Any) -> Iterator[Any]:
    """Yield values of a field that differ from its own in value or in type."""
    yield from (_MISSING, None, 0, "other", [], {}, -1, 2**20, True)
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield from (value + 1, value / 2, str(value), -value)
    elif isinstance(value, str):
        yield from ("", f"{value}x", [value], {"content": value})
    elif isinstance(value, list):
        yield from (value[:-1], [*value, *value[:1]], value[::-1])


def changed_files(content: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the content of a JSON file with one field changed, and what was changed."""
    if depth >= _MOST_DEPTH or not isinstance(content, dict | list):
        return
    for key, value in content.items() if isinstance(content, dict) else enumerate(content):
        for change in changes(value):
            if type(change) is type(value) and change == value:
                continue
            changed = content.copy()
            if change is _MISSING:
                del changed[key]
            else:
                changed[key] = change
            yield f"{key} = {'missing' if change is _MISSING else repr(change)[:40]}", changed
        for description, inner in changed_files(value, depth + 1):
            changed = content.copy()
            changed[key] = inner
            yield f"{key}.{description}", changed


@contextmanager
def changed_file(path: Path, content: Any) -> Iterator[None]:
    """Change the content of a JSON file for a while."""
    original = path.read_text(encoding="utf-8") if path.is_file() else None
    path.write_text(json.dumps(content), encoding="utf-8")
    try:
        yield
    finally:
        if original is None:
            path.unlink()
        else:
            path.write_text(original, encoding="utf-8")
