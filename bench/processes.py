"""Cores, CPU time and memory of processes on Linux; imports little, so that a measured process stays small."""

import os
import platform
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

_Result = TypeVar("_Result")

SERVER_CORE, LOAD_CORE = 0, 1


def processor() -> str:
    """Return the name of this machine's processor."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def pin(*cores: int) -> None:
    """Restrict this process to some cores."""
    os.sched_setaffinity(0, cores)


def cpu_s(pid: int) -> float:
    """Return the CPU seconds, user and system, of a process."""
    # The process name may hold spaces; it ends at the last parenthesis.
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


def own_cpu_s(function: Callable[[], Any]) -> float:
    """Return the CPU seconds of this process in which a function runs."""
    started_s = time.process_time()
    function()
    return time.process_time() - started_s


def memory_mib(field: str, pid: int | str = "self") -> float:
    """Return the memory of a process: now if the field is VmRSS, at its peak if the field is VmHWM."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) / 1024


def in_new_process(module: str, function: str, *arguments: Any) -> Any:
    """Run a function of a module in a process of its own, so that the module's imports take no memory of this one."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(_call, module, function, *arguments).result()


def _call(module: str, function: str, *arguments: Any) -> Any:
    return getattr(import_module(module), function)(*arguments)


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
