"""Read the values of settings from text: one type for each kind of value."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Any

# Attention weights are sent in one Protobuf message, which must be smaller than 2 GiB.
_MAX_ATTEND_BYTES = 1 << 30
_MOST_FRONT_ENDS = 64
# Scheme, host and port as browsers write them in the header Origin.
_ORIGIN = re.compile(r"https?://([a-z0-9.-]+|\[[0-9a-f:]+\])(:[0-9]{1,5})?")


@dataclass(frozen=True)
class ValueType:
    """How to read a setting's value.

    Attributes:
        read: reads a value from text; raises ValueError if the text is not valid.
        accepted: the values that are valid, in words.
        choices: the values that are valid, if there are only a few.
    """

    read: Callable[[str], Any]
    accepted: str
    choices: tuple[str, ...] = ()


def _whole_number(lowest: int, highest: float = float("inf")) -> Callable[[str], int]:
    def read(text: str) -> int:
        value = int(text)
        if not lowest <= value <= highest:
            raise ValueError
        return value

    return read


def _read_seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ValueError
    return value


def _read_time_limit(text: str) -> float:
    value = _read_seconds(text)
    if not value:
        raise ValueError
    return value


def _read_gpus(text: str) -> tuple[int, ...]:
    values = tuple(map(_whole_number(0), text.split(",")))
    if len(set(values)) < len(values):
        raise ValueError
    return values


def _read_address(text: str) -> str:
    host, _, port = text.rpartition(":")
    PORT.read(port)
    if not host:
        raise ValueError
    return text


def _read_file(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        raise ValueError
    return path


def _read_directory(text: str) -> Path:
    path = Path(text)
    if not path.is_dir():
        raise ValueError
    return path


def _read_front_ends(text: str) -> int | str:
    return text if text == "auto" else _whole_number(0, _MOST_FRONT_ENDS)(text)


def _read_origins(text: str) -> tuple[str, ...]:
    origins = tuple(text.split(",")) if text else ()
    if not all(map(_ORIGIN.fullmatch, origins)):
        raise ValueError
    return origins


def _read_networks(text: str) -> tuple[str, ...]:
    networks = tuple(text.split(",")) if text else ()
    for each in networks:
        ip_network(each)
    return networks


def one_of(*choices: str) -> ValueType:
    """Return the type of a value that is one of these words."""

    def read(text: str) -> str:
        if text not in choices:
            raise ValueError
        return text

    return ValueType(read, f"{', '.join(choices[:-1])} or {choices[-1]}", choices)


NATURAL = ValueType(_whole_number(0), "a whole number of at least 0")
POSITIVE = ValueType(_whole_number(1), "a whole number of at least 1")
ATTEND_BYTES = ValueType(_whole_number(1, _MAX_ATTEND_BYTES), f"a whole number from 1 to {_MAX_ATTEND_BYTES}")
FRONT_ENDS = ValueType(_read_front_ends, f"auto or a whole number from 0 to {_MOST_FRONT_ENDS}")
PORT = ValueType(_whole_number(0, 65_535), "a port number")
SECONDS = ValueType(_read_seconds, "a finite number of seconds of at least 0")
TIME_LIMIT = ValueType(_read_time_limit, "a finite number of seconds above 0")
GPUS = ValueType(_read_gpus, "different indices of GPUs, such as 0,1")
ORIGINS = ValueType(_read_origins, "origins, such as https://a.example,http://localhost:3000")
NETWORKS = ValueType(_read_networks, "addresses or networks, such as 10.0.0.7,192.168.0.0/16")
ADDRESS = ValueType(_read_address, "HOST:PORT")
FILE = ValueType(_read_file, "an existing file")
DIRECTORY = ValueType(_read_directory, "an existing folder")
NAME = ValueType(str, "a name")
