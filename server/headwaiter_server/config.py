"""The server's settings: one object, validated once, each field a flag and an environment variable."""

import argparse
import dataclasses
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

_MIB = 1 << 20
# A message cannot have 2 GiB.
_MOST_ATTEND_BYTES = 1 << 30


class SettingsError(Exception):
    """A setting is wrong; the message is one sentence that names the flag."""


def _natural(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError
    return value


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def _attend_bytes(text: str) -> int:
    value = _positive(text)
    if value > _MOST_ATTEND_BYTES:
        raise ValueError
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ValueError
    return value


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value < 1 << 16:
        raise ValueError
    return value


def _numbers(text: str) -> tuple[int, ...]:
    values = tuple(_natural(each) for each in text.split(","))
    if len(set(values)) < len(values):
        raise ValueError
    return values


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    _port(port)
    if not host:
        raise ValueError
    return text


def _file(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        raise ValueError
    return path


def _folder(text: str) -> Path | None:
    return Path(text) if text else None


def _one_of(*choices: str) -> Callable[[str], str]:
    def choose(text: str) -> str:
        if text not in choices:
            raise ValueError
        return text

    return choose


def _setting(default: Any, read: Callable[[str], Any], wanted: str, text: str) -> Any:
    return dataclasses.field(default=default, metadata={"read": read, "wanted": wanted, "help": text})


@dataclass(frozen=True)
class Settings:
    """Everything an operator can choose; `0` leaves the choice to the server where the help says so."""

    bundle: Path
    provider: Literal["auto", "cuda", "cpu"] = _setting(
        "auto", _one_of("auto", "cuda", "cpu"), "auto, cuda or cpu", "where to run; auto takes CUDA if it works"
    )
    precision: Literal["auto", "fp32", "fp16", "int8"] = _setting(
        "auto",
        _one_of("auto", "fp32", "fp16", "int8"),
        "auto, fp32, fp16 or int8",
        "auto takes fp16 on CUDA and fp32 on the CPU; fp16 is for CUDA, int8 for the CPU",
    )
    address: str = _setting("0.0.0.0:50051", _address, "HOST:PORT", "where to serve gRPC; port 0 takes a free one")
    metrics_port: int = _setting(9464, _port, "a port number", "where to serve Prometheus metrics; 0 takes a free port")
    threads: int = _setting(0, _natural, "a whole number from 0", "threads of the CPU provider; 0: the physical cores")
    devices: tuple[int, ...] = _setting(
        (0,), _numbers, "numbers of GPUs, such as 0,1", "the GPUs to run on, one queue before them; for CUDA"
    )
    max_gpu_bytes: int = _setting(
        0,
        _natural,
        "a whole number from 0",
        "most memory of a GPU that one session's weights and batches take, inputs aside; 0: all of it",
    )
    instances: int = _setting(
        1, _positive, "a positive number", "sessions on each device, each with the weights in memory once more"
    )
    token_budget: int = _setting(
        0,
        _natural,
        "a whole number from 0",
        "most tokens in a batch; 0: the fewest that are as fast as more, as measured",
    )
    cache_dir: Path | None = _setting(
        None, _folder, "a folder", "remembers what batches cost; '' for none; unless given, in the user's cache"
    )
    max_queue_tokens: int = _setting(262_144, _positive, "a positive number", "most tokens waiting; more are refused")
    max_queue_s: float = _setting(
        30.0, _seconds, "seconds", "longest wait, by estimate; requests that would wait for longer are refused"
    )
    max_request_sequences: int = _setting(4096, _positive, "a positive number", "most sequences in a request")
    max_request_tokens: int = _setting(65_536, _positive, "a positive number", "most tokens in a request")
    max_request_bytes: int = _setting(16 * _MIB, _positive, "a positive number", "largest request message")
    max_calls: int = _setting(
        8192, _positive, "a positive number", "most calls answered at a time, streams included; more are refused"
    )
    max_stream_requests: int = _setting(
        1024, _positive, "a positive number", "most requests of one stream in flight; it is read no further meanwhile"
    )
    max_stream_bytes: int = _setting(
        32 * _MIB, _positive, "a positive number", "most bytes of the requests of one stream, and of their answers"
    )
    max_attend_bytes: int = _setting(
        64 * _MIB,
        _attend_bytes,
        f"a number from 1 to {_MOST_ATTEND_BYTES}",
        "largest weights of an Attend, all heads of its layers counted",
    )
    tls_cert: Path | None = _setting(None, _file, "a file that is there", "the server's certificate chain")
    tls_key: Path | None = _setting(None, _file, "a file that is there", "the certificate's private key")
    tls_client_ca: Path | None = _setting(
        None, _file, "a file that is there", "require client certificates signed by this"
    )
    token_file: Path | None = _setting(
        None, _file, "a file that is there", "require the bearer token that this file holds"
    )
    drain_s: float = _setting(30.0, _seconds, "seconds", "how long to finish admitted work after SIGTERM")

    def __post_init__(self) -> None:
        """Check what no field can check alone."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise SettingsError("--tls-cert and --tls-key go together: give both or neither")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise SettingsError("--tls-client-ca needs --tls-cert and --tls-key")
        if self.max_request_tokens > self.max_queue_tokens:
            raise SettingsError(
                f"--max-request-tokens {self.max_request_tokens} is over --max-queue-tokens {self.max_queue_tokens}: "
                "such a request could never be queued"
            )

    @property
    def threads_per_instance(self) -> int | None:
        """Return the threads of one session; None leaves it the machine's physical cores."""
        if self.threads:
            return self.threads
        return None if self.instances == 1 else max(1, (os.cpu_count() or 1) // self.instances)

    def token(self) -> str | None:
        """Read the bearer token that callers must bring, if one is required.

        Raises:
            SettingsError: the file holds none that a caller could send.
        """
        if self.token_file is None:
            return None
        try:
            token = self.token_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"--token-file {self.token_file} cannot be read: {error}") from None
        if not token:
            raise SettingsError(f"--token-file {self.token_file} is empty")
        if not re.fullmatch("[!-~]+", token):
            raise SettingsError(
                f"--token-file {self.token_file} holds what no caller can send: a token is of visible ASCII "
                "characters, without blanks"
            )
        return token


def flag(name: str) -> str:
    """Return the flag of a field."""
    return "--" + name.replace("_", "-")


def variable(name: str) -> str:
    """Return the environment variable of a field."""
    return "HEADWAITER_" + name.upper()


def read_settings(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Read settings from the command line, else the environment, else the defaults.

    Raises:
        SettingsError: which flag is wrong, and what would be right.
    """
    given = {name: text for name, text in vars(_parser().parse_args(arguments)).items() if text is not None}
    values: dict[str, Any] = {}
    for field in dataclasses.fields(Settings):
        # A variable that is set but empty is what compose files make of one that is not set.
        text = given.get(field.name, environment.get(variable(field.name)) or None)
        if field.name == "bundle":
            if not text:
                raise SettingsError(
                    "no bundle given: name its folder, headwaiter-server BUNDLE, or set HEADWAITER_BUNDLE; "
                    "headwaiter-export checkpoint FOLDER -o BUNDLE makes one"
                )
            values["bundle"] = Path(text)
        elif text is not None:
            values[field.name] = _read(field, text)
    return Settings(**{"cache_dir": _user_cache(environment), **values})


def _user_cache(environment: Mapping[str, str]) -> Path | None:
    """Return our folder in the user's cache, by the XDG base directory specification; None for a user without home."""
    home = environment.get("HOME")
    caches = environment.get("XDG_CACHE_HOME") or (home and f"{home}/.cache")
    return Path(caches) / "headwaiter" if caches else None


def _read(field: "dataclasses.Field[Any]", text: str) -> Any:
    try:
        return field.metadata["read"](text)
    except ValueError:
        raise SettingsError(f"{flag(field.name)} {text!r} is not {field.metadata['wanted']}") from None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="headwaiter-server",
        description="Serve a bundle over gRPC. Each flag can be given as an environment variable, HEADWAITER_<FLAG>.",
    )
    for field in dataclasses.fields(Settings):
        if field.name == "bundle":
            parser.add_argument("bundle", nargs="?", metavar="BUNDLE", help="the folder that headwaiter-export wrote")
            continue
        default = "" if field.default is None else f" (default {field.default})"
        parser.add_argument(flag(field.name), metavar=field.name.upper(), help=field.metadata["help"] + default)
    return parser
