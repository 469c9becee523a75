"""A plain test that starts something slow fails, and a test with the fixture for it belongs to the second tier."""

import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers

from headwaiter_server.runtime.graph import EncoderGraph
from tests.support.client.fake_server import FakeServer
from tests.support.tiers import is_second_tier

STARTS: dict[str, tuple[str, Callable[[], object]]] = {
    "a process": ("starts_processes", lambda: subprocess.run(["true"], check=False)),
    "a fork": ("starts_processes", lambda: os.fork() or os._exit(0)),
    "a server of gRPC": ("starts_processes", FakeServer),
    "another server": ("starts_processes", lambda: socket.create_server(("127.0.0.1", 0))),
    "the graph of a bundle": ("runs_graphs", lambda: EncoderGraph.open(Path("packed-cpu.fp32.onnx"), "cpu", threads=1)),
    "a trace": ("runs_graphs", lambda: torch.onnx.export(torch.nn.Identity(), (torch.ones(1),), dynamo=True)),
    "a model": ("runs_transformers", lambda: transformers.BertModel(transformers.BertConfig(num_hidden_layers=0))),
    "a tokenizer": ("runs_transformers", lambda: transformers.BertTokenizer({"[UNK]": 0})),
}


@pytest.mark.parametrize(("fixture", "start"), STARTS.values(), ids=STARTS)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_plain_test_that_starts_something_slow_fails_and_learns_the_name_of_the_fixture(
    fixture: str, start: Callable[[], object], request: pytest.FixtureRequest
) -> None:
    assert not request.node.get_closest_marker("check")
    with pytest.raises(pytest.fail.Exception, match=rf"starts .*: let the test request the fixture `{fixture}`"):
        start()


def test_a_test_with_the_fixture_starts_a_process_in_the_second_tier(
    request: pytest.FixtureRequest, starts_processes: None
) -> None:
    assert subprocess.run(["true"], check=False).returncode == 0
    assert request.node.get_closest_marker("check")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("e2e", True),
        ("export/checkpoints", True),
        ("export/test_padded_modules.py", True),
        ("smoke", False),
        ("smoke/conftest.py", False),
        ("client/conftest.py", False),
        ("export", False),
        ("server/http/api", False),
        ("test_tiers.py", False),
    ],
)
def test_a_file_or_a_folder_with_a_fixture_for_all_its_tests_belongs_to_the_second_tier(
    name: str, *, expected: bool
) -> None:
    path = Path(__file__).parent / name
    assert path.exists()
    assert is_second_tier(path) == expected
