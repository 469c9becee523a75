"""Fixtures for the tests of the measured cost."""

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from headwaiter_server.runtime.model import Model
from tests.support.server.simulated_graph import GATHERED, SimulatedGraph, simulated_model


@pytest.fixture
def simulated(tmp_path: Path) -> Iterator[tuple[Model, SimulatedGraph]]:
    model, graph = simulated_model(tmp_path, GATHERED)
    with patch("headwaiter_server.runtime.batch_timing.time", graph):
        yield model, graph
