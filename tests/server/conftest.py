"""Fixtures for tests of a service whose answers tests can compute."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.server.service_under_test import Service, WordLengths


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Callable[..., Service]]:
    """Make services with a tokenizer and with fields of the manifest; drain them after the test."""
    made: list[Service] = []

    def make(tokenizer: WordLengths | None = None, **manifest: Any) -> Service:
        made.append(Service(tmp_path, tokenizer, **manifest))
        return made[-1]

    yield make
    for service in made:
        await service.scheduler.drain(30.0)


@pytest.fixture
async def service(serve: Callable[..., Service]) -> Service:
    """A service that takes texts: the id of a word is its length."""
    return serve(WordLengths())
