"""Real servers in separate processes, reached over gRPC.

`tests.e2e.in_process_server` starts servers inside the test process, for tests that inspect or change their parts.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.minilm import bundle, checkpoint
from testbed.server_process import RunningServer, running_server
from tests.shared_folders import SharedFolders
from tests.stored_costs import store_cost


@pytest.fixture(scope="session")
def real_model(shared_folders: SharedFolders) -> tuple[Path, Path]:
    """The checkpoint and the bundle of all-MiniLM-L6-v2; both stay on disk for later test runs."""

    def make(_: Path) -> None:
        checkpoint()
        store_cost(bundle(), 1)

    shared_folders.get("all-MiniLM-L6-v2", make)
    return checkpoint(), bundle()


@pytest.fixture(scope="session")
def real_checkpoint(real_model: tuple[Path, Path]) -> Path:
    """The checkpoint folder of all-MiniLM-L6-v2."""
    return real_model[0]


@pytest.fixture(scope="session")
def real_bundle(real_model: tuple[Path, Path]) -> Path:
    """The bundle folder of all-MiniLM-L6-v2."""
    return real_model[1]


@pytest.fixture(scope="session")
def real_server(real_bundle: Path) -> Iterator[RunningServer]:
    """A server of all-MiniLM-L6-v2 in float32 with one thread."""
    with running_server(real_bundle, ["--provider", "cpu", "--threads", "1"]) as server:
        yield server


@pytest.fixture(scope="session")
def text_server(text_bundle: Path) -> Iterator[RunningServer]:
    """A server of "tiny-text" that accepts at most 8 sequences, 96 tokens and 8 KiB per request."""
    limits = ["--max-request-sequences", "8", "--max-request-tokens", "96", "--max-request-bytes", "8192"]
    with running_server(text_bundle, ["--provider", "cpu", *limits]) as server:
        yield server


@pytest.fixture(scope="session")
def feature_server(feature_bundle: Path) -> Iterator[RunningServer]:
    """A server of "tiny-features"."""
    with running_server(feature_bundle, ["--provider", "cpu"]) as server:
        yield server


@pytest.fixture(scope="session")
def http_server(text_bundle: Path) -> Iterator[RunningServer]:
    """A server of "tiny-text" whose HTTP port answers requests and serves the playground; it waits 2 s for a body."""
    flags = ["--provider", "cpu", "--http-api", "on", "--playground", "on", "--http-timeout-s", "2"]
    with running_server(text_bundle, flags) as server:
        yield server
