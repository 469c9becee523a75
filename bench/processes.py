"""Cores, CPU time and memory of processes on Linux; imports little, so that a measured process stays small."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

_Result = TypeVar("_Result")

SERVER_CORE, LOAD_CORE = 0, 1


def pin(*cores: int) -> None:
    """Restrict this process to some cores."""
    os.sched_setaffinity(0, cores)


def cpu_s(pid: int) -> float:
    """Return the CPU seconds, user and system, of a process."""
    # The process name may hold spaces; it ends at the last parenthesis.
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


def memory_mib(field: str, pid: int | str = "self") -> float:
    """Return the memory of a process: now if the field is VmRSS, at its peak if the field is VmHWM."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) / 1024


def in_turn(
    first: Callable[[], _Result], second: Callable[[], _Result], pairs: int
) -> tuple[list[_Result], list[_Result]]:
    """Run two functions in turn, and return the results of each."""
    results: tuple[list[_Result], list[_Result]] = ([], [])
    turns = list(zip((first, second), results, strict=True))
    for _ in range(pairs):
        # Alternate the order, because the second run of a pair may have an advantage.
        turns.reverse()
        for run, collected in turns:
            collected.append(run())
    return results
