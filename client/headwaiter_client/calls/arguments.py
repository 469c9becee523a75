"""What callers pass: arguments of another Python type are refused by their names, before anything is sent."""

from collections.abc import Callable
from inspect import iscoroutinefunction
from types import UnionType


def check_type(name: str, value: object, kind: type | UnionType, what: str) -> None:
    """Refuses an argument of another type; its value is not shown, for it may be a secret.

    Raises:
        TypeError: it is no `kind`, which the message calls `what`.
    """
    if not isinstance(value, kind):
        raise TypeError(f"{name} is of type {type(value).__name__}; it must be {what}")


def check_progress(progress: object) -> None:
    """Refuses what cannot be called back.

    Raises:
        TypeError: it is no function, or one to await.
    """
    check_type("progress", progress, Callable | None, "a function of two numbers, done and total")  # type: ignore[arg-type]
    if iscoroutinefunction(progress):
        raise TypeError("progress is a coroutine function, which nothing would await; it must be a plain function")
