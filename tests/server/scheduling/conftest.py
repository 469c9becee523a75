"""Fixtures for the tests of the scheduler."""

from collections.abc import AsyncIterator

import pytest

from tests.support.server.fakes import Harness, drain


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    """A scheduler on a fake device; its queue must be empty after the test."""
    harness = Harness()
    yield harness
    harness.device.resumed.set()
    harness.device.release()
    await drain(harness.scheduler)
    assert harness.queue.queued_sequences == harness.queue.queued_tokens == 0
