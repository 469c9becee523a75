"""Count the processors that the server may use, name its commit, and find HEADWAITER_ variables that nothing reads."""

import math
import os
import re
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_PREFIX = "HEADWAITER_"
# Kubernetes sets variables such as HEADWAITER_SERVICE_HOST and HEADWAITER_PORT_50051_TCP for a service of this name.
_SERVICE_LINK = re.compile(r"HEADWAITER(_\w+)?_(SERVICE_(HOST|PORT)(_\w+)?|PORT(_\d+_(TCP|UDP)(_\w+)?)?)")
# The images set this variable to the commit of their code.
REVISION_VARIABLE = "HEADWAITER_REVISION"
# Variables that are no settings of the server: that of the commit, those of headwaiter-client, and the one that colours
# the output of the commands.
_NO_SETTINGS = (REVISION_VARIABLE, "HEADWAITER_CLIENT_", "HEADWAITER_COLOR")


def usable_processors(cgroup: Path = _CGROUP) -> int:
    """Return how many processors this process may use: the smaller of its CPU affinity and its cgroup's quota."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return math.ceil(min(affinity, _cpu_quota(cgroup)))


def _cpu_quota(cgroup: Path) -> float:
    """Return the processors that the cgroup may use on average; infinity without a quota."""
    for files in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            quota_us, period_us = " ".join((cgroup / file).read_text() for file in files).split()
            return int(quota_us) / int(period_us) if int(quota_us) > 0 else math.inf
        except (OSError, ValueError):  # There is no such file, or it says "max".
            continue
    return math.inf


def revision(environment: Mapping[str, str]) -> str:
    """Return the commit of the code; "unknown" outside of an image."""
    return environment.get(REVISION_VARIABLE) or "unknown"


def unknown_variables(names: Iterable[str], known: Collection[str]) -> list[str]:
    """Return a sentence for each name of Headwaiter's environment variables that no program reads."""
    problems = []
    for name in sorted(names):
        if name in known or not name.startswith(_PREFIX) or name.startswith(_NO_SETTINGS):
            continue
        if _SERVICE_LINK.fullmatch(name):
            continue
        similar = get_close_matches(name.removeprefix(_PREFIX), [each.removeprefix(_PREFIX) for each in known], n=1)
        advice = f"did you mean {_PREFIX}{similar[0]}?" if similar else "remove it, or see headwaiter-server --help"
        problems.append(f"the environment variable {name} has no effect: {advice}")
    return problems
