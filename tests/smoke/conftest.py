"""Lets the tests of this folder start what they like: they belong to the first tier all the same."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def _any_start(starts_processes: None, runs_graphs: None, runs_transformers: None) -> None:
    """Let each test start processes, graphs and models of other libraries."""
