"""Fixtures for the tests of the scheduler."""

from collections.abc import AsyncIterator

import pytest

from tests.server.scheduling.fakes import Harness


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    """A scheduler on a fake device; after the test it must have an empty queue."""
    harness = Harness()
    yield harness
    harness.device.release()
    await harness.scheduler.drain(30.0)
    assert harness.scheduler.queued_sequences == harness.scheduler.queued_tokens == 0
