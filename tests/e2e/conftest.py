"""Servers to call over real gRPC, each a process of its own; `tests.e2e.inside` has those that a test looks into."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.minilm import bundle, checkpoint
from testbed.server_process import Running, running_server
from tests.once import Once


@pytest.fixture(scope="session")
def real_model(once: Once) -> tuple[Path, Path]:
    """The checkpoint and the bundle of all-MiniLM-L6-v2, which stay for the next run."""
    once("all-MiniLM-L6-v2", lambda _: (checkpoint(), bundle()))
    return checkpoint(), bundle()


@pytest.fixture(scope="session")
def real_checkpoint(real_model: tuple[Path, Path]) -> Path:
    """The folder of all-MiniLM-L6-v2."""
    return real_model[0]


@pytest.fixture(scope="session")
def real_bundle(real_model: tuple[Path, Path]) -> Path:
    """The bundle of all-MiniLM-L6-v2."""
    return real_model[1]


@pytest.fixture(scope="session")
def real_server(real_bundle: Path) -> Iterator[Running]:
    """A server of all-MiniLM-L6-v2 in float32 on one core."""
    with running_server(real_bundle, ["--provider", "cpu", "--threads", "1"]) as server:
        yield server


@pytest.fixture(scope="session")
def text_server(text_bundle: Path) -> Iterator[Running]:
    """A server of "tiny-text" that takes at most 8 sequences, 96 tokens and 8 KiB a request."""
    limits = ["--max-request-sequences", "8", "--max-request-tokens", "96", "--max-request-bytes", "8192"]
    with running_server(text_bundle, ["--provider", "cpu", *limits]) as server:
        yield server


@pytest.fixture(scope="session")
def feature_server(feature_bundle: Path) -> Iterator[Running]:
    """A server of "tiny-features"."""
    with running_server(feature_bundle, ["--provider", "cpu"]) as server:
        yield server
