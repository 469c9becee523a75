"""Every example program runs and prints the expected result."""

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
from headwaiter_server.settings.flags import read_settings
from testbed.server_process import RunningServer
from tests.support.documents import ROOT

PYTHON = ROOT / "examples" / "client"
NODE = ROOT / "examples" / "node"

# Part of the output of each example with the tiny models.
PRINTED = {
    "asynchronous": "stopped the stream after text 3",
    "attend": "head 3: the attends most to ",
    "cancel": " of 5000 texts\ncancelled: ",
    "count_tokens": "text 1 has 34 tokens; the model encodes at most 32\n2 vectors, of [26, 10] tokens\n",
    "deadline": "not within 1 ms: ",
    "encode": "9 of 9 texts",
    "errors": "correct the request: sequence 1: ",
    "fake": "all tests pass",
    "features": "20 rows of width 24",
    "hidden": "bread      [",
    "models": "a request: at most 8 sequences, 96 tokens\n",
    "partial": "'too long too long to' failed: ",
    "pooling": "the first token's row: [",
    "prompts": "query: 'rain on a fresh bread' has 7 tokens",
    "raw_stream": "b: SEQUENCE_TOO_LONG: ",
    "replicas": "20 calls to 2 addresses, answered by 1 model",
    "small_vectors": "int8: 72 bytes, cosine ",
    "stream": "60 texts in the order of arrival",
    "tokens": "12 tokens: [",
    "truncation": "text 1 was truncated from 34 to 32 tokens",
}


def test_every_example_has_a_test() -> None:
    assert {path.stem for path in PYTHON.glob("*.py")} == {
        *PRINTED,
        "secure",  # test_security.py runs this example.
        "rerank",  # And test_classify.py this one.
    }


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_prints_the_expected_result(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server: RunningServer = request.getfixturevalue("feature_server" if name == "features" else "text_server")
    addresses = [server.address] * (2 if name == "replicas" else 1)
    monkeypatch.setattr("sys.argv", [f"{name}.py", *addresses])
    runpy.run_path(str(PYTHON / f"{name}.py"))
    printed = capsys.readouterr().out
    assert PRINTED[name] in printed
    assert not re.search(r"\d\.\d{7}", printed)  # All numbers are rounded.


def test_the_features_example_refuses_a_text_model(text_server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["features.py", text_server.address])
    with pytest.raises(SystemExit, match="tiny-text"):
        runpy.run_path(str(PYTHON / "features.py"))


def test_the_demo_finds_neighbours_of_the_same_group(
    real_bundle: Path, real_server: RunningServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def already_running(folder: Path, flags: list[str]) -> Iterator[RunningServer]:
        settings = read_settings([str(folder), *flags], {})
        assert (settings.provider, settings.precision) == ("cpu", "auto")
        yield real_server

    monkeypatch.setattr(demo, "bundle", lambda: real_bundle)
    monkeypatch.setattr(demo, "running_server", already_running)
    monkeypatch.setattr("sys.argv", ["demo.py", "--provider", "cpu"])
    assert demo.main() == 0
    assert re.search(r"^sum of round trips +\d+\.\d\d  100\.0%$", capsys.readouterr().out, re.MULTILINE)


@pytest.fixture
def node(text_server: RunningServer) -> Callable[[str], str]:
    """A function that runs an example in Node.js and returns its output."""
    program = shutil.which("node")
    if program is None or not (NODE / "node_modules" / ".package-lock.json").exists():
        pytest.skip("Node.js 18 or newer, or a package is missing: install Node.js and run `npm ci` in examples/node")

    def run(name: str) -> str:
        command = [program, str(NODE / name), text_server.address]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=True).stdout

    return run


@pytest.mark.parametrize(
    ("name", "other_output"),
    [("encode.mjs", "model tiny-text"), ("stream.mjs", "b: SEQUENCE_TOO_LONG: ")],
    ids=["unary", "stream"],
)
def test_node_gets_the_same_vectors_as_the_python_client(
    name: str, other_output: str, node: Callable[[str], str], text_server: RunningServer
) -> None:
    printed = node(name)
    found = re.findall(r"^(.+): (\d+) tokens, (.+) …$", printed, re.MULTILINE)
    texts, lengths, numbers = zip(*found, strict=True)
    assert sorted(texts) == ["rain falls on stone", "the bread is fresh"]
    assert other_output in printed
    with Client(text_server.address) as client:
        encoding = client.encode(texts)
    assert [int(length) for length in lengths] == encoding.lengths.tolist()
    values = [[float(number) for number in line.split()] for line in numbers]
    np.testing.assert_allclose(values, encoding.pooled[:, :3], rtol=0, atol=1e-5)


def test_node_reads_the_details_of_an_error(node: Callable[[str], str]) -> None:
    prompt, prompt_details, unknown, unknown_details = node("errors.mjs").splitlines()
    assert prompt.startswith("INVALID_ARGUMENT: ")
    reason, metadata = prompt_details.split(maxsplit=1)
    assert (reason, json.loads(metadata)) == ("INVALID_INPUT", {"field": "texts.prompt"})
    assert unknown.startswith("NOT_FOUND: ")
    assert "'another'" in unknown
    assert unknown_details == '  MODEL_NOT_FOUND {"field":"model"}'
