"""Fixtures for tests of the Encoder service."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.server.rpc.service_under_test import Service, WordLengths


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    service = Service(tmp_path, WordLengths())
    yield service
    await service.scheduler.drain(30.0)
