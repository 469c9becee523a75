"""`headwaiter-client encode` finishes its file although the server hangs, dies and comes back."""

import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from headwaiter_client import Client
from testbed.minilm import command_path
from testbed.server_process import running_server

LINES = 8_000
DEADLINE_S = 2
OUTAGE_S = 6


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_a_job_outlasts_a_missed_deadline_and_a_dead_server(text_bundle: Path, tmp_path: Path) -> None:
    words = ("bread", "rain", "stone", "table")
    texts = [" ".join(words[(line >> 2 * place) % 4] for place in range(8)) for line in range(LINES)]
    (tmp_path / "texts").write_text("\n".join(texts))
    flags = ["--provider", "cpu", "--max-request-sequences", "8"]
    with running_server(text_bundle, flags) as server:
        job = _start_job(tmp_path, server.address)
        assert job.stderr is not None
        _wait_for_rows(job, tmp_path)
        server.process.send_signal(signal.SIGSTOP)
        late = job.stderr.readline()
        server.process.send_signal(signal.SIGCONT)  # Before a failure of the test: a stopped process ignores SIGTERM.
        assert _is_waiting(late)
        assert "answers again" in job.stderr.readline()
        server.process.kill()
        assert _is_waiting(job.stderr.readline())
    time.sleep(OUTAGE_S)
    assert job.poll() is None
    with running_server(text_bundle, flags, address=server.address):
        output, errors = job.communicate(timeout=60)
        assert (job.returncode, len(errors.splitlines())) == (0, 1)
        assert f"{LINES:,} sentences" in output
        with Client(server.address) as client:
            expected = client.encode(texts[-500:]).pooled
    vectors = np.load(tmp_path / "out.npy")
    assert len(vectors) == LINES
    np.testing.assert_allclose(vectors[-500:], expected, rtol=0, atol=1e-5)


def _start_job(folder: Path, address: str) -> "subprocess.Popen[str]":
    command = [command_path("headwaiter-client"), "encode", "texts", "-o", "out.npy"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAITER_")}
    return subprocess.Popen(
        [*command, "--address", address, "--timeout-s", str(DEADLINE_S)],
        env=environment,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _wait_for_rows(job: "subprocess.Popen[str]", folder: Path) -> None:
    """Wait until the job has written some of its rows."""
    partial = folder / "out.npy.partial"
    while not (partial.exists() and partial.stat().st_size > 10_000):
        assert job.poll() is None
        time.sleep(0.05)


def _is_waiting(line: str) -> bool:
    # While front ends end, they answer that a process of the server has ended; later, nobody answers.
    return line.startswith("headwaiter-client: waiting for the server: ")
