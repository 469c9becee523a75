"""Reads the JSON files of a checkpoint; a field is checked where it is read, and what is wrong is one sentence."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from headwaiter_export.config import MOST

Choice = TypeVar("Choice")


class CheckpointError(Exception):
    """A checkpoint cannot be read, or our encoder cannot reproduce it."""


@dataclass(frozen=True)
class Settings:
    """A JSON object; every reader of a field raises CheckpointError, naming the field and what would be right.

    Attributes:
        path: the file.
        values: its fields, unchecked.
    """

    path: Path
    values: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> "Settings":
        """Read a file.

        Raises:
            CheckpointError: it is missing, or holds no JSON object.
        """
        values = read_json(path)
        if not isinstance(values, dict):
            raise CheckpointError(f"{path} is no JSON object")
        return cls(path, values)

    @classmethod
    def read_if_there(cls, path: Path) -> "Settings":
        """Read a file as `read` does, or return no fields where there is none."""
        return cls.read(path) if path.is_file() else cls(path, {})

    def count(self, name: str, least: int = 1) -> int:
        """Return a field that must be a whole number, `least` or more."""
        value = self._required(name)
        if type(value) is not int or not least <= value <= MOST:
            raise self.refusal(name, f"it must be a whole number from {least} to {MOST}")
        return value

    def switch(self, name: str) -> bool:
        """Return a field that must be true or false."""
        value = self._required(name)
        if not isinstance(value, bool):
            raise self.refusal(name, "it must be true or false")
        return value

    def choice(self, name: str, choices: Mapping[str, Choice]) -> Choice:
        """Return what a field stands for."""
        value = self._required(name)
        if not isinstance(value, str) or value not in choices:
            raise self.refusal(name, f"the known ones are {', '.join(choices)}")
        return choices[value]

    def limit(self, name: str) -> float | None:
        """Return a field that must be a number, 1 or more; None where it is absent or null."""
        value = self.values.get(name)
        if value is not None and (type(value) not in (int, float) or not value >= 1):
            raise self.refusal(name, "it must be a number, 1 or more")
        return value

    def texts(self, name: str) -> list[str]:
        """Return a field that must be a list of texts; none where it is absent or null."""
        values = self.values.get(name) or []
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise self.refusal(name, "it must be a list of texts")
        return values

    def mapping(self, name: str) -> dict[str, str]:
        """Return a field that must be an object of texts."""
        values = self._required(name)
        if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
            raise self.refusal(name, "it must be an object of texts")
        return values

    def refusal(self, name: str, reason: str) -> CheckpointError:
        """Return the error that names a field, its value and what is wrong with it."""
        return CheckpointError(f"{self.path} has {name} {self.values[name]!r:.99}: {reason}")

    def _required(self, name: str) -> Any:
        if name not in self.values:
            raise CheckpointError(f"{self.path} has no {name}")
        return self.values[name]


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        CheckpointError: it is missing, or no JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise CheckpointError(f"{path} is missing") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from None
