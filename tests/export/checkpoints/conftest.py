"""Lets the tests of checkpoints compare with the libraries that wrote the checkpoints."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def _libraries(runs_transformers: None) -> None:
    """Let each test of this folder use transformers and sentence-transformers."""
