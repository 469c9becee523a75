"""Every example runs, and prints what it is there to show."""

import json
import re
import runpy
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from examples import demo
from headwaiter_client import Client
from headwaiter_server.config import read_settings
from testbed.server_process import Running
from tests.documents import ROOT

PYTHON = ROOT / "examples" / "client"
NODE = ROOT / "examples" / "node"

# A line of each, in the words of the tiny models.
PRINTED = {
    "asynchronous": "text 3 is enough",
    "attend": "head 3: the looks at ",
    "cancel": "of 5000 texts are enough\ncancelled: ",
    "deadline": "not within 1 ms: ",
    "encode": "9 of 9 texts",
    "errors": "mend it: sequence 1: sequence 1 is empty",
    "fake": "both tests pass",
    "features": "20 rows of width 24",
    "hidden": "bread      [",
    "models": "a request: at most 8 sequences, 96 tokens\n",
    "partial": "'': sequence 1 is empty",
    "pooling": "the first token's: [",
    "prompts": "query: 'rain on a fresh bread' has 7 tokens",
    "raw_stream": "b: INVALID_INPUT: sequence 0 is empty",
    "replicas": "20 calls over 2 addresses, answered by 1 model",
    "small_vectors": "int8: 72 bytes, cosine ",
    "stream": "60 texts, as they came",
    "tokens": "12 tokens: [",
    "truncation": "text 1 was cut from 34 tokens to 32",
}


def test_no_example_is_left_out() -> None:
    assert {path.stem for path in PYTHON.glob("*.py")} == {*PRINTED, "secure"}  # Which test_security.py runs.


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_prints_what_it_shows(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server: Running = request.getfixturevalue("feature_server" if name == "features" else "text_server")
    addresses = [server.address] * (2 if name == "replicas" else 1)
    monkeypatch.setattr("sys.argv", [f"{name}.py", *addresses])
    runpy.run_path(str(PYTHON / f"{name}.py"))
    printed = capsys.readouterr().out
    assert PRINTED[name] in printed
    assert not re.search(r"\d\.\d{7}", printed)  # Nobody rounded it.


def test_features_are_not_sent_to_a_model_of_texts(text_server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["features.py", text_server.address])
    with pytest.raises(SystemExit, match=r"^tiny-text takes no features: serve a model that does"):
        runpy.run_path(str(PYTHON / "features.py"))


@pytest.mark.timeout(600)  # The first run fetches and exports the model.
def test_the_demo_finds_that_neighbours_are_of_one_group(
    real_server: Running, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def serving_already(folder: Path, flags: list[str]) -> Iterator[Running]:
        settings = read_settings([str(folder), *flags], {})
        assert (settings.provider, settings.precision) == ("cpu", "auto")
        yield real_server

    monkeypatch.setattr(demo, "running_server", serving_already)
    monkeypatch.setattr("sys.argv", ["demo.py", "--provider", "cpu"])
    assert demo.main() == 0
    assert re.search(r"^client wall clock +\d+\.\d\d  100\.0%$", capsys.readouterr().out, re.MULTILINE)


@pytest.fixture
def node(text_server: Running) -> Callable[[str], str]:
    """Runs an example in Node.js and returns what it printed."""
    program = shutil.which("node")
    if program is None or not (NODE / "node_modules" / ".package-lock.json").exists():
        pytest.skip("the examples in Node.js need Node.js 18 or newer, and `npm ci` in examples/node")

    def run(name: str) -> str:
        command = [program, str(NODE / name), text_server.address]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=True).stdout

    return run


@pytest.mark.parametrize(
    ("name", "besides"),
    [("encode.mjs", "by tiny-text"), ("stream.mjs", "b: INVALID_INPUT: sequence 0 is empty")],
    ids=["unary", "stream"],
)
def test_node_gets_the_vectors_that_the_client_gets(
    name: str, besides: str, node: Callable[[str], str], text_server: Running
) -> None:
    printed = node(name)
    found = re.findall(r"^(.+): (\d+) tokens, (.+) …$", printed, re.MULTILINE)
    texts, lengths, numbers = zip(*found, strict=True)
    assert sorted(texts) == ["rain falls on stone", "the bread is fresh"]
    assert besides in printed
    with Client(text_server.address) as client:
        encoding = client.encode(texts)
    assert encoding.pooled is not None
    assert [int(length) for length in lengths] == encoding.lengths.tolist()
    values = [[float(number) for number in line.split()] for line in numbers]
    np.testing.assert_allclose(values, encoding.pooled[:, :3], rtol=0, atol=1e-5)


def test_node_reads_the_details_of_errors(node: Callable[[str], str]) -> None:
    empty, empty_details, unknown, unknown_details = node("errors.mjs").splitlines()
    assert empty.startswith("INVALID_ARGUMENT: sequence 1 is empty")
    reason, metadata = empty_details.split(maxsplit=1)
    assert (reason, json.loads(metadata)) == ("INVALID_INPUT", {"sequence": "1", "field": "texts"})
    assert unknown.startswith("NOT_FOUND: there is no model 'another' here")
    assert unknown_details == '  MODEL_NOT_FOUND {"field":"model"}'
