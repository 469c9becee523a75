"""Real servers in separate processes, reached over gRPC.

`tests.support.e2e.in_process_server` starts servers inside the test process, for tests that inspect or change parts.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from headwaiter_export.cli import main
from testbed.minilm import checkpoint
from testbed.server_process import RunningServer, running_server
from tests.support.shared_folders import SharedFolders


@pytest.fixture(scope="session", autouse=True)
def _any_start(starts_processes: None, runs_graphs: None, runs_transformers: None) -> None:
    """Let each test of this folder start what it likes."""


@pytest.fixture(scope="session")
def real_checkpoint(shared_folders: SharedFolders) -> Path:
    """The checkpoint folder of all-MiniLM-L6-v2, which stays on disk for later test runs."""
    shared_folders.get("all-MiniLM-L6-v2-checkpoint", lambda _: checkpoint())
    return checkpoint()


@pytest.fixture(scope="session")
def real_bundle(real_checkpoint: Path, shared_folders: SharedFolders) -> Path:
    """A bundle of all-MiniLM-L6-v2 with the only graphs that the tests run, because the others take a minute."""

    def export(folder: Path) -> None:
        graph = ["--graphs", "packed-cpu", "attend", "--precision", "fp32"]
        assert main(["checkpoint", str(real_checkpoint), "-o", str(folder), "--name", "all-MiniLM-L6-v2", *graph]) == 0

    return shared_folders.get("all-MiniLM-L6-v2", export)


@pytest.fixture(scope="session")
def real_server(real_bundle: Path) -> Iterator[RunningServer]:
    """A server of all-MiniLM-L6-v2 in float32 with one thread."""
    with running_server(real_bundle, ["--provider", "cpu", "--threads", "1"]) as server:
        yield server


@pytest.fixture(scope="session")
def http_server(text_bundle: Path) -> Iterator[RunningServer]:
    """A server of "tiny-text" whose HTTP port answers requests and serves the playground; it waits 2 s for a body."""
    flags = ["--provider", "cpu", "--http-api", "on", "--playground", "on", "--http-timeout-s", "2"]
    with running_server(text_bundle, flags) as server:
        yield server
