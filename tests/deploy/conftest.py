"""Fixtures for the tests of deployments."""

import pytest

from tests.support.deploy.chart import Chart, find_helm
from tests.support.shared_folders import SharedFolders


@pytest.fixture(scope="session")
def chart(shared_folders: SharedFolders) -> Chart:
    """The Helm chart."""
    return Chart(find_helm(shared_folders))
