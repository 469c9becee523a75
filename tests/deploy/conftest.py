"""Fixtures for the tests of deployments."""

import pytest

from tests.support.deploy.chart import Chart, find_helm
from tests.support.shared_folders import SharedFolders


@pytest.fixture(scope="session", autouse=True)
def _processes(starts_processes: None) -> None:
    """Let each test of this folder start processes."""


@pytest.fixture(scope="session")
def chart(shared_folders: SharedFolders) -> Chart:
    """The Helm chart."""
    return Chart(find_helm(shared_folders))
