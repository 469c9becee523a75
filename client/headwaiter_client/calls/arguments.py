"""Check the Python types of arguments, and that texts are Unicode, before anything is sent."""

from collections.abc import Callable
from inspect import iscoroutinefunction
from types import UnionType

from headwaiter_client.errors import InvalidInput


def check_type(name: str, value: object, accepted: type | UnionType, description: str) -> None:
    """Raise a `TypeError` unless the argument `name` has an accepted type; `description` says which types these are.

    The message shows the type of the value but never the value, because the value may be a secret.
    """
    if not isinstance(value, accepted):
        raise TypeError(f"{name} is of type {type(value).__name__}: pass {description}")


def check_progress(progress: object) -> None:
    """Raise a `TypeError` unless `progress` is a plain function or None."""
    check_type("progress", progress, Callable | None, "a function of two numbers, done and total")  # type: ignore[arg-type]
    if iscoroutinefunction(progress):
        raise TypeError("progress is a coroutine function, which the client never awaits: pass a plain function")


def check_unicode(name: str, text: str, *, field: str, sequence: int | None = None) -> None:
    """Raise `InvalidInput` unless a text can be encoded as UTF-8. The message begins with `name`."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"{name} is not Unicode text ({error}): remove the characters that UTF-8 cannot encode",
            field=field,
            sequence=sequence,
        ) from error
