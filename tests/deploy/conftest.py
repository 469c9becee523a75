"""Fixtures for the tests of deployments."""

import pytest

from tests.deploy.chart import Chart, find_helm
from tests.shared_folders import SharedFolders


@pytest.fixture(scope="session")
def chart(shared_folders: SharedFolders) -> Chart:
    """The Helm chart."""
    return Chart(find_helm(shared_folders))
