"""Programs of other projects, in environments of their own, because their dependencies contradict ours."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

_TIMEOUT_S = 240


def variables() -> dict[str, str]:
    """Return the environment variables of this process, without the folders of our packages."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def package_python(folder: Path, *requirements: str) -> Path:
    """Return the Python of a new environment with packages; skip the test if pip cannot install them."""
    python = folder / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    run_or_skip([str(python), "-m", "pip", "install", "--quiet", *requirements])
    return python


async def run_program(*command: object, folder: Path | None = None, **added: str) -> tuple[int | None, str]:
    """Run a program with further environment variables; return its exit status and what it printed."""
    process = await asyncio.create_subprocess_exec(
        *map(str, command),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**variables(), **added},
    )
    printed, _ = await process.communicate()
    return process.returncode, printed.decode()


def run_or_skip(command: Sequence[str], folder: Path | None = None) -> None:
    """Run a command that needs the network or the system; skip the test if the command fails."""
    try:
        ended = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False, env=variables()
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"{' '.join(command[:4])}: {error}")
    if ended.returncode:
        pytest.skip(f"{' '.join(command[:4])}: {(ended.stderr or ended.stdout).strip().splitlines()[-1]}")
