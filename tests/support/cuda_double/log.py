"""The log of the double: the events as values, and questions that tests ask about them."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar


@dataclass(eq=False, slots=True)
class Event:
    """A line of the log. The attributes are the fields of the line that tests ask about.

    Attributes:
        device: number of the device; −1 for host memory and marks.
    """

    device: int


@dataclass(eq=False, slots=True)
class Launch(Event):
    """A launch of a kernel.

    Attributes:
        name: the kernel's short readable name.
        grid: blocks in each dimension.
        invalid: what a real card refuses ("grid", "block", "zero" or "shared_memory"); None for a valid launch.
    """

    name: str
    grid: str
    invalid: str | None


@dataclass(eq=False, slots=True)
class Product(Event):
    """A matrix product of cuBLAS or cuBLASLt."""


@dataclass(eq=False, slots=True)
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


@dataclass(eq=False, slots=True)
class Wait(Event):
    """A wait of the host for a device."""


@dataclass(eq=False, slots=True)
class Allocation(Event):
    """An allocation of device memory.

    Attributes:
        in_use: bytes in use on the device after the allocation.
        error: 2 if the device is out of memory; 0 if not.
    """

    in_use: int
    error: int


@dataclass(eq=False, slots=True)
class Free(Event):
    """The return of device memory; `in_use` as in `Allocation`."""

    in_use: int


@dataclass(eq=False, slots=True)
class Capture(Event):
    """The begin or the end of a capture: `action` is "begin" or "end"."""

    action: str
    error: int


@dataclass(eq=False, slots=True)
class GraphLaunch(Event):
    """A launch of a CUDA graph."""


@dataclass(eq=False, slots=True)
class Failure(Event):
    """From here on, each call on the device fails in this process."""

    error: int


@dataclass(eq=False, slots=True)
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

# Build an event from its device, the line's fields, and the names of the kernels. Other lines are not read.
_READERS: dict[str, Callable[[int, _Fields, _Fields], Event]] = {
    "launch": lambda device, f, kernels: Launch(
        device, kernel_name(kernels[f["kernel"]]), f["grid"], None if f["invalid"] == "-" else f["invalid"]
    ),
    "product": lambda device, *_: Product(device),
    "copy": lambda device, f, _: Copy(device, f["source"], f["target"], int(f["bytes"]), f["waits"] == "1"),
    "wait": lambda device, *_: Wait(device),
    "allocate": lambda device, f, _: Allocation(device, int(f["in_use"]), int(f["error"])),
    "free": lambda device, f, _: Free(device, int(f["in_use"])),
    "capture": lambda device, f, _: Capture(device, f["action"], int(f["error"])),
    "graph": lambda device, *_: GraphLaunch(device),
    "failure": lambda device, f, _: Failure(device, int(f["error"])),
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
        file.write(f"mark text={text}\n".encode())


def parse(lines: Iterable[str]) -> Iterator[Event]:
    """Read the lines of a log; an incomplete last line is left out."""
    # A line gives each kernel a number when a process launches the kernel for the first time.
    kernels: dict[str, str] = {}
    for line in lines:
        if not line.endswith("\n"):
            return
        event, _, rest = line[:-1].partition(" ")
        if event == "mark":
            yield Mark(-1, rest.removeprefix("text="))
            continue
        if event not in _READERS and event != "kernel":
            continue
        fields = dict(field.split("=", 1) for field in rest.split(" "))
        if event == "kernel":
            kernels[fields["id"]] = fields["name"]
            continue
        yield _READERS[event](int(fields.get("device", -1)), fields, kernels)


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


def bytes_in_use(events: Iterable[Event], device: int) -> int:
    """Return the bytes of device memory in use after the last event, in a log of one process."""
    changes = [event for event in events if isinstance(event, Allocation | Free) and event.device == device]
    return changes[-1].in_use if changes else 0
