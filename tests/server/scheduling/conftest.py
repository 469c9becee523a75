"""What the tests of batching share."""

from collections.abc import AsyncIterator

import pytest

from tests.server.scheduling.stand_ins import Bench


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    """A scheduler before a device of a test's own, which has nothing left to do in the end."""
    bench = Bench()
    yield bench
    bench.device.release()
    await bench.scheduler.drain(30.0)
    assert bench.scheduler.queued_sequences == bench.scheduler.queued_tokens == 0
