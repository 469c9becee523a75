"""Fixtures for the tests of the scheduler."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from headwaiter_server.runtime.model import Model
from tests.server.scheduling.fakes import Harness
from tests.server.scheduling.simulated_graph import GATHERED, SimulatedGraph, simulated_model


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    """A scheduler on a fake device; its queue must be empty after the test."""
    harness = Harness()
    yield harness
    harness.device.release()
    await harness.scheduler.drain(30.0)
    assert harness.queue.queued_sequences == harness.queue.queued_tokens == 0


@pytest.fixture
def simulated(tmp_path: Path) -> Iterator[tuple[Model, SimulatedGraph]]:
    model, graph = simulated_model(tmp_path, GATHERED)
    with patch("headwaiter_server.runtime.warmup.time", graph):
        yield model, graph
