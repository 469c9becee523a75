"""The end of a process: when the server fails, and with which exit code."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.usefixtures("starts_processes")

FAILING_SERVER = """
import sys, threading, time
from headwaiter_server import cli, signals

async def serve(settings):
    threading.Thread(target=time.sleep, args=(600,)).start()
    raise RuntimeError("a fault")

signals.serve = serve
sys.argv = ["headwaiter-server", "bundle"]
sys.exit(cli.main())
"""


def test_an_unexpected_error_ends_the_process_although_a_thread_still_works() -> None:
    ended = subprocess.run([sys.executable, "-c", FAILING_SERVER], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "RuntimeError: a fault" in ended.stderr


def test_the_exit_code_is_the_same_without_a_standard_error() -> None:
    program = "from headwaiter_server.processes.interpreter import exit_at_once; exit_at_once(7)"
    ended = subprocess.run(["sh", "-c", 'exec "$0" -c "$1" 2>&-', sys.executable, program], check=False, timeout=60)
    assert ended.returncode == 7
