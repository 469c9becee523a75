"""The command ends when the server fails, so that a supervisor can start the server again."""

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
