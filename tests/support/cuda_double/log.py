"""The log of the double: the events as values, and questions that tests ask about them."""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

# The functions that only wait. A wait by another function, such as cudaMemcpy, is implied by what the function does.
_EXPLICIT_WAITS = {"cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize"}


@dataclass(frozen=True, slots=True)
class Event:
    """A line of the log. The attributes are the fields of the line that tests ask about.

    Attributes:
        at_ns: the time of the system's monotonic clock (`time.monotonic_ns`).
        device: number of the device; −1 for host memory and marks.
    """

    at_ns: int
    device: int


@dataclass(frozen=True, slots=True)
class Launch(Event):
    """A launch of a kernel.

    Attributes:
        name: the kernel's short readable name.
        grid: blocks in each dimension.
        captured: whether a CUDA graph recorded the launch instead of running it.
        invalid: what a real card refuses ("grid", "block", "zero" or "shared_memory"); None for a valid launch.
    """

    name: str
    grid: str
    captured: bool
    invalid: str | None


@dataclass(frozen=True, slots=True)
class Product(Event):
    """A matrix product of cuBLAS or cuBLASLt: [m, k] · [k, n], in the column-major order of cuBLAS."""

    m: int
    n: int
    k: int
    types: tuple[str, str, str]
    captured: bool
    error: int


@dataclass(frozen=True, slots=True)
class Copy(Event):
    """A copy.

    Attributes:
        source: "pageable", "pinned" or "device", which the address decides.
        target: as `source`.
        waits: whether the copy waits until the work before it is done; if so, a Wait follows.
    """

    source: str
    target: str
    bytes: int
    waits: bool

    @property
    def direction(self) -> str:
        """For example "pageable to device"."""
        return f"{self.source} to {self.target}"


@dataclass(frozen=True, slots=True)
class Wait(Event):
    """A wait of the host for a device, by a CUDA function."""

    by: str

    @property
    def implied(self) -> bool:
        """Whether the function does something else than to wait, such as a blocking copy."""
        return self.by not in _EXPLICIT_WAITS


@dataclass(frozen=True, slots=True)
class Allocation(Event):
    """An allocation of device memory.

    Attributes:
        in_use: bytes in use on the device after the allocation.
        error: 2 if the device is out of memory; 0 if not.
    """

    in_use: int
    error: int


@dataclass(frozen=True, slots=True)
class Free(Event):
    """The return of device memory; `in_use` as in `Allocation`."""

    in_use: int


@dataclass(frozen=True, slots=True)
class Capture(Event):
    """The begin or the end of a capture: `action` is "begin" or "end"; `launches` counts those captured."""

    action: str
    launches: int
    error: int


@dataclass(frozen=True, slots=True)
class GraphLaunch(Event):
    """A launch of a CUDA graph with that many captured launches."""

    launches: int


@dataclass(frozen=True, slots=True)
class Context(Event):
    """A process opened its context on a device, which takes several hundred MiB on a real card."""


@dataclass(frozen=True, slots=True)
class Failure(Event):
    """From here on, each call on the device fails in this process."""

    error: int
    error_name: str


@dataclass(frozen=True, slots=True)
class Mark(Event):
    """A text that a test wrote to the log."""

    text: str


@cache
def kernel_name(mangled: str) -> str:
    """Return the name of a kernel without namespaces, template arguments and parameters."""
    # "_ZN", then each namespace and at last the kernel, each with its length before it.
    name, rest = mangled, re.sub(r"^_ZN?", "", mangled)
    while mangled.startswith("_Z") and (length := re.match(r"\d+", rest)):
        end = length.end() + int(length[0])
        name, rest = rest[length.end() : end], rest[end:]
    return name


Kind = TypeVar("Kind", bound=Event)
_Fields = Mapping[str, str]

# Build an event from its time, its device, the line's fields, and the names of the kernels. Other lines are not read.
_READERS: dict[str, Callable[[int, int, _Fields, _Fields], Event]] = {
    "launch": lambda at, device, f, kernels: Launch(
        at,
        device,
        kernel_name(kernels[f["kernel"]]),
        f["grid"],
        f["captured"] == "1",
        None if f["invalid"] == "-" else f["invalid"],
    ),
    "product": lambda at, device, f, _: Product(
        at,
        device,
        int(f["m"]),
        int(f["n"]),
        int(f["k"]),
        (f["a"], f["b"], f["c"]),
        f["captured"] == "1",
        int(f["error"]),
    ),
    "copy": lambda at, device, f, _: Copy(at, device, f["source"], f["target"], int(f["bytes"]), f["waits"] == "1"),
    "wait": lambda at, device, f, _: Wait(at, device, f["by"]),
    "allocate": lambda at, device, f, _: Allocation(at, device, int(f["in_use"]), int(f["error"])),
    "free": lambda at, device, f, _: Free(at, device, int(f["in_use"])),
    "capture": lambda at, device, f, _: Capture(at, device, f["action"], int(f["launches"]), int(f["error"])),
    "graph": lambda at, device, f, _: GraphLaunch(at, device, int(f["launches"])),
    "context": lambda at, device, *_: Context(at, device),
    "failure": lambda at, device, f, _: Failure(at, device, int(f["error"]), f["name"]),
}


class Log:
    """The log of the processes that run on one double.

    Args:
        path: the log's file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def mark(self, text: str) -> None:
        """Write a mark, which `between` finds; a process on the double may use `write_mark` instead."""
        write_mark(self.path, text)

    def events(self) -> list[Event]:
        """Return all events so far, in their order."""
        with self.path.open(encoding="utf-8") as lines:
            return list(parse(lines))


def write_mark(path: Path, text: str) -> None:
    """Append a mark to a log file; each line takes one write, so processes may write at the same time."""
    with path.open("ab", buffering=0) as file:
        file.write(f"mark at={time.monotonic_ns()} thread=0 text={text}\n".encode())


def parse(lines: Iterable[str]) -> Iterator[Event]:
    """Read the lines of a log; an incomplete last line is left out."""
    # A line gives each kernel a number when a process launches the kernel for the first time.
    kernels: dict[str, str] = {}
    for line in lines:
        if not line.endswith("\n"):
            return
        event, _, rest = line[:-1].partition(" ")
        if event == "mark":
            at, _, text = rest.split(" ", 2)
            yield Mark(int(at.partition("=")[2]), -1, text.partition("=")[2])
            continue
        if event not in _READERS and event != "kernel":
            continue
        fields = dict(field.split("=", 1) for field in rest.split(" "))
        if event == "kernel":
            kernels[fields["id"]] = fields["name"]
            continue
        yield _READERS[event](int(fields["at"]), int(fields.get("device", -1)), fields, kernels)


def of(kind: type[Kind], events: Iterable[Event]) -> list[Kind]:
    """Return the events of one class."""
    return [event for event in events if isinstance(event, kind)]


def between(events: Sequence[Event], start: str, end: str) -> list[Event]:
    """Return the events between two marks, each of which is in the log once."""
    texts = [event.text if isinstance(event, Mark) else None for event in events]
    return list(events[texts.index(start) + 1 : texts.index(end)])


def copies(events: Iterable[Event], direction: str | None = None) -> list[Copy]:
    """Return the copies, optionally only those in one direction, such as "pageable to device"."""
    return [copy for copy in of(Copy, events) if direction in (None, copy.direction)]


def waits(events: Iterable[Event]) -> list[Wait]:
    """Return the waits of the host for a device."""
    return of(Wait, events)


def invalid_launches(events: Iterable[Event]) -> list[Launch]:
    """Return the launches that a real card refuses."""
    return [launch for launch in of(Launch, events) if launch.invalid]


def kernel_names(events: Iterable[Event]) -> list[str]:
    """Return the short readable names of the kernels launched, in the order of the launches."""
    return [launch.name for launch in of(Launch, events)]


def bytes_in_use(events: Iterable[Event], device: int = 0) -> int:
    """Return the bytes of device memory in use after the last event, in a log of one process."""
    return ([0] + [change.in_use for change in _memory_changes(events, device)])[-1]


def peak_bytes(events: Iterable[Event], device: int = 0) -> int:
    """Return the largest number of bytes of device memory in use after any of the events."""
    return max((change.in_use for change in _memory_changes(events, device)), default=0)


def _memory_changes(events: Iterable[Event], device: int) -> Iterator[Allocation | Free]:
    return (event for event in events if isinstance(event, Allocation | Free) and event.device == device)
