"""Damage bundles and checkpoints in many ways: each is read, or refused in one line, in little memory and time."""

import json
import re
import select
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from tests.support.server.bundles import sign
from tests.support.soak.report import counted, examples

_MAX_GROWTH_MIB = 512.0
_MAX_MESSAGE_CHARACTERS = 2000
_TIMEOUT_S = 120.0
# A checkpoint that is still good takes seconds to export.
_SHARE_OF_CHECKPOINTS = 0.4
_NUMBER = re.compile(rb"(?<![\w.])-?\d+(\.\d+)?(?![\w.])")
_NUMBERS = (b"0", b"-1", b"1", b"2", b"1.5", b"64", b"1000", b"4294967295", b"18446744073709551616", b"1e400", b"null")
_WORD = re.compile(rb'"[^"\\]*"')
_WORDS = (
    b'""',
    b'"a\\nb"',
    b'"../x"',
    b'"' + b"x" * 10_000 + b'"',
    b'"POOLING_CLS"',
    b'"PRECISION_INT8"',
    b"[]",
    b"{}",
)


class _Reader:
    """A process that reads folders, and is replaced when it hangs or ends."""

    def __init__(self, kind: str, good: Path, log: Path) -> None:
        self._command = [sys.executable, "-m", "tests.support.soak.folder_reader", kind]
        self._good, self._log = good, log
        self.broken: list[str] = []
        self.outcomes = Counter[str]()
        self.growth_mib = 0.0
        self._start()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log.open("ab")
        )
        answer = self._ask(self._good)
        if answer is None:
            raise RuntimeError(f"{self._good} cannot be read: look at {self._log}")
        self._first_mib = answer["peak_mib"]

    def _ask(self, folder: Path) -> dict[str, Any] | None:
        """Return the answer for a folder, or None if the process ends or hangs."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(f"{folder}\n".encode())
            self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], _TIMEOUT_S)
        line = self._process.stdout.readline() if ready else b""
        return json.loads(line) if line else None

    def read(self, folder: Path, change: str) -> None:
        """Read a changed folder, and note what is wrong with the answer."""
        answer = self._ask(folder)
        if answer is None:
            self.broken.append(f"{change}: the process hangs or has ended")
            self.close()
            self._start()
            return
        outcome, message = answer["outcome"], answer["message"]
        self.outcomes[outcome] += 1
        growth_mib = answer["peak_mib"] - self._first_mib
        self.growth_mib = max(self.growth_mib, growth_mib)
        if outcome.startswith("raised") or "\n" in message or len(message) > _MAX_MESSAGE_CHARACTERS:
            self.broken.append(f"{change}: {outcome}: {message[:200]!r}")
        if growth_mib > _MAX_GROWTH_MIB:
            self.broken.append(f"{change}: memory grew by {growth_mib:.0f} MiB")
            self.close()
            self._start()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


def fuzzed_folders(bundle: Path, checkpoint: Path, folder: Path, seconds: float, seed: int) -> list[str]:
    """Damage copies of a bundle and of a checkpoint for some seconds; return the promises that were broken."""
    random, log = Random(seed), folder / "reader.log"
    broken: list[str] = []
    for kind, good, share in (
        ("bundle", bundle, 1 - _SHARE_OF_CHECKPOINTS),
        ("checkpoint", checkpoint, _SHARE_OF_CHECKPOINTS),
    ):
        reader = _Reader(kind, good, log)
        end_s = time.monotonic() + share * seconds
        while time.monotonic() < end_s:
            copied = folder / "fuzzed"
            shutil.copytree(good, copied)
            change = change_folder(copied, random)
            if kind == "bundle" and random.random() < 0.8:
                with suppress(Exception):
                    # ONNX Runtime may end the process if a graph is damaged; its SHA-256 finds that.
                    sign(copied, [path.name for path in copied.iterdir() if path.suffix != ".onnx"])
            reader.read(copied, f"{kind}, {change}")
            shutil.rmtree(copied)
        reader.close()
        print(f"{kind}s: {counted(reader.outcomes)}; memory grew by at most {reader.growth_mib:.0f} MiB")
        broken += examples("broken", reader.broken)
    tracebacks = log.read_text(errors="replace").count("Traceback")
    return broken + [f"{tracebacks} tracebacks in the log"] * bool(tracebacks)


def change_folder(folder: Path, random: Random) -> str:
    """Damage one or two files of a folder; return what was done."""
    done = []
    for _ in range(random.choice((1, 1, 1, 2))):
        path = random.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
        change = random.choice(CHANGES)
        change(path, random)
        done.append(f"{change.__name__} {path.name}")
    return " and ".join(done)


def truncate(path: Path, random: Random) -> None:
    """Keep the first bytes of a file."""
    content = path.read_bytes()
    path.write_bytes(content[: random.randrange(len(content) + 1)])


def change_bytes(path: Path, random: Random) -> None:
    """Change some bytes of a file, mostly near its begin, where its structure is."""
    content = bytearray(path.read_bytes())
    for _ in range(random.choice((1, 2, 8)) if content else 0):
        content[int(len(content) * random.random() ** random.choice((1, 4)))] = random.choice((0, 1, 127, 128, 255))
    path.write_bytes(content)


def change_number(path: Path, random: Random) -> None:
    """Change a number in a file of JSON."""
    _replace(path, _NUMBER, _NUMBERS, random)


def change_word(path: Path, random: Random) -> None:
    """Change a text in a file of JSON."""
    _replace(path, _WORD, _WORDS, random)


def _replace(path: Path, pattern: re.Pattern[bytes], values: tuple[bytes, ...], random: Random) -> None:
    content = path.read_bytes()
    if path.suffix == ".json" and (found := list(pattern.finditer(content))):
        match = random.choice(found)
        path.write_bytes(content[: match.start()] + random.choice(values) + content[match.end() :])


def inflate(path: Path, random: Random) -> None:
    """Make a file larger, or compress a hundred million zeros in it."""
    if path.suffix == ".npz":
        with suppress(Exception), np.load(path) as stored:
            arrays = dict(stored)
            np.savez_compressed(path, **{**arrays, "hidden": np.zeros((25_000_000,), np.float32)})
        return
    with path.open("ab") as file:
        file.write(random.choice((b"\0", b"[", b"\x0a\x00", b" ")) * random.choice((1, 1000, 4_000_000)))


def swap(path: Path, random: Random) -> None:
    """Exchange the contents of two files."""
    other = random.choice(sorted(other for other in path.parent.iterdir() if other.is_file()))
    mine, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs)
    other.write_bytes(mine)


def rename(path: Path, random: Random) -> None:
    """Give a file another name."""
    path.rename(path.with_name(random.choice(("other", f"{path.name}.old", "config.json", "weights.fp32.bin"))))


def remove(path: Path, random: Random) -> None:
    """Remove a file, or put a folder in its place."""
    path.unlink()
    if random.random() < 0.3:
        path.mkdir()


CHANGES: tuple[Callable[[Path, Random], None], ...] = (
    truncate,
    change_bytes,
    change_bytes,
    change_number,
    change_number,
    change_number,
    change_word,
    change_word,
    inflate,
    swap,
    rename,
    remove,
)
