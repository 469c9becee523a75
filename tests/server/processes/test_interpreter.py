"""The exit of a process: its exit code, whatever has become of standard error."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.usefixtures("starts_processes")


def test_the_exit_code_is_the_same_without_a_standard_error() -> None:
    program = "from headwaiter_server.processes.interpreter import exit_at_once; exit_at_once(7)"
    ended = subprocess.run(["sh", "-c", 'exec "$0" -c "$1" 2>&-', sys.executable, program], check=False, timeout=60)
    assert ended.returncode == 7
