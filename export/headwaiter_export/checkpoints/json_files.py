"""Read the JSON files of a checkpoint, and check each field when it is read."""

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from headwaiter_export.config.field_checks import MAX_SIZE

Choice = TypeVar("Choice")
_REMOVE = "remove the field if results do not depend on it"


class CheckpointError(Exception):
    """A checkpoint cannot be read, or the encoder cannot reproduce its results."""


@dataclass(frozen=True)
class CheckpointJson:
    """A JSON object of a checkpoint.

    Methods that read a field raise CheckpointError with the file, the field, its value and the allowed values.

    Attributes:
        path: path of the file, for error messages.
        values: fields of the object, not yet checked.
    """

    path: Path
    values: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> "CheckpointJson":
        """Read a file.

        Raises:
            CheckpointError: the file is missing or holds no JSON object.
        """
        values = read_json(path)
        if not isinstance(values, dict):
            raise CheckpointError(f"{path} holds a JSON {type(values).__name__}: it must hold an object")
        return cls(path, values)

    @classmethod
    def read_if_present(cls, path: Path) -> "CheckpointJson":
        """Read a file like `read`; return an object without fields if the file is missing."""
        return cls.read(path) if is_present(path) else cls(path, {})

    def size(self, name: str, least: int = 1) -> int:
        """Return a field that must be a whole number of at least `least`."""
        value = self._required(name)
        if type(value) is not int or not least <= value <= MAX_SIZE:
            raise self.error(name, f"it must be a whole number from {least} to {MAX_SIZE}")
        return value

    def boolean(self, name: str) -> bool:
        """Return a field that must be true or false."""
        value = self._required(name)
        if not isinstance(value, bool):
            raise self.error(name, "it must be true or false")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        """Return a field that must be true or false if it is present."""
        return self.boolean(name) if name in self.values else default

    def is_true(self, name: str) -> bool:
        """Return whether a field, which may be missing or null, is true."""
        return self.values.get(name) is not None and self.boolean(name)

    def choice(self, name: str, choices: Mapping[str, Choice]) -> Choice:
        """Return the value in `choices` of a field that must be one of its keys."""
        value = self._required(name)
        if not isinstance(value, str) or value not in choices:
            raise self.error(name, f"it must be one of {', '.join(choices)}")
        return choices[value]

    def listed(self, name: str, choices: Mapping[str, Choice]) -> tuple[Choice, ...]:
        """Return the values in `choices` of a field that must be one of their keys, or a list of one or more."""
        value = self._required(name)
        listed = value if isinstance(value, list) else [value]
        if not listed or not all(isinstance(each, str) and each in choices for each in listed):
            raise self.error(name, f"it must be one of {', '.join(choices)}, or a list of these")
        return tuple(choices[each] for each in listed)

    def limit(self, name: str) -> float | None:
        """Return a field that must be a number of at least 1; None if the field is missing or null."""
        value = self.values.get(name)
        if value is not None and (type(value) not in (int, float) or not value >= 1):
            raise self.error(name, "it must be a number of at least 1")
        return value

    def strings(self, name: str) -> list[str]:
        """Return a field that must be a list of strings; empty if the field is missing or null."""
        values = self.values.get(name) or []
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise self.error(name, "it must be a list of strings")
        return values

    def string_map(self, name: str) -> dict[str, str]:
        """Return a field that must be an object of strings."""
        values = self._required(name)
        if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
            raise self.error(name, "it must be an object of strings")
        return values

    def require(self, supported: Mapping[str, object], known: Collection[str] | None = None) -> None:
        """Check that each field is missing, null or empty, or has its supported value.

        Raises:
            CheckpointError: a field has another value; or, if `known` is given, a field is neither there nor supported.
        """
        for name, value in self.values.items():
            if name in supported and value not in (None, {}, [], supported[name]):
                value = supported[name]
                supports = "the export cannot apply it" if value is None else f"the export supports only {value!r}"
                raise self.error(name, f"{supports}; {_REMOVE}")
            if known is not None and name not in supported and name not in known:
                raise self.error(name, f"the export does not know the field; {_REMOVE}")

    def with_aliases(self, aliases: Mapping[str, str]) -> "CheckpointJson":
        """Return the object with the fields that are given under another name; `aliases` maps other names to names.

        Raises:
            CheckpointError: a field has two values; transformers would take that of the other name.
        """
        values = dict(self.values)
        for alias, name in aliases.items():
            if alias in values and values.setdefault(name, values[alias]) != values[alias]:
                raise self.error(alias, f"it must be equal to {name}, {values[name]!r:.99}")
        return CheckpointJson(self.path, values)

    def error(self, name: str, expected: str) -> CheckpointError:
        """Return an error with the file, a field, its value and the values that are expected."""
        if name not in self.values:
            return CheckpointError(f"{self.path} has no field {name}: {expected}")
        return CheckpointError(f"{self.path} has {name} {self.values[name]!r:.99}: {expected}")

    def _required(self, name: str) -> Any:
        if name not in self.values:
            raise CheckpointError(f"{self.path} has no field {name}: add it")
        return self.values[name]


def is_present(path: Path) -> bool:
    """Return whether a folder has an entry of this name, also if the entry is no file that can be read."""
    return path.exists() or path.is_symlink()


def path_inside(folder: Path, name: str, source: Path) -> Path:
    """Return the path of a part of a checkpoint that the file `source` names.

    The part may be a link that leads outside the folder, as in the cache of Hugging Face. Its name may not.

    Raises:
        CheckpointError: the name leads outside the folder.
    """
    path = Path(name)
    if path.anchor or ".." in path.parts:
        raise CheckpointError(
            f"{source} names {name!r:.99}, which is outside the checkpoint: name a part of the folder"
        )
    return folder / path


@contextmanager
def refuse_errors(describe: Callable[[str], str]) -> Iterator[None]:
    """Raise CheckpointError, with the first line of any error in the block described, also of a panic of Rust code."""
    try:
        yield
    except (CheckpointError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 - a panic of Rust code is no Exception
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise CheckpointError(describe(reason)) from None


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        CheckpointError: the file is missing, cannot be read, or is not JSON.
    """
    try:
        if path.exists() and not path.is_file():
            raise CheckpointError(f"{path} is no regular file: save it again, or correct the path")
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing: save it again, or correct the path") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}): let this user read it") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from None
