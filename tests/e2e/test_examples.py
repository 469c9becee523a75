"""Every example runs, and prints what it is there to show."""

import re
import runpy
import shutil
import subprocess

import numpy as np
import pytest

from examples.serving import Running
from headwaiter_client import Client
from tests.documents import ROOT

PYTHON = ROOT / "examples" / "client"
NODE = ROOT / "examples" / "node"

# A line of each, in the words of the tiny models.
PRINTED = {
    "asynchronous": "text 3 is enough",
    "attend": "head 3: the looks at ",
    "encode": "9 of 9 texts",
    "errors": "mend it: sequence 1: texts.values[1] is empty",
    "fake": "both tests pass",
    "features": "20 rows of width 24",
    "hidden": "bread      [",
    "partial": "'': texts.values[1] is empty",
    "prompts": "query: 'rain on a fresh bread' has 7 tokens",
    "raw_stream": "b: INVALID_INPUT: texts.values[0] is empty",
    "replicas": "20 calls over 2 addresses, answered by 1 model",
    "small_vectors": "int8: 72 bytes, cosine ",
    "stream": "60 texts, as they came",
    "tokens": "12 tokens: [",
    "truncation": "text 1 was cut from 34 tokens to 32",
}


def test_no_example_is_left_out() -> None:
    assert {path.stem for path in PYTHON.glob("*.py")} == set(PRINTED)


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


def test_node_gets_the_vectors_that_the_client_gets(text_server: Running) -> None:
    node = shutil.which("node")
    if node is None or not (NODE / "node_modules" / ".package-lock.json").exists():
        pytest.skip("the example in Node.js needs Node.js 18 or newer, and `npm ci` in examples/node")
    program = [node, str(NODE / "encode.mjs"), text_server.address]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=60, check=True)
    texts, lengths, numbers = zip(*re.findall(r"^(.+): (\d+) tokens, (.+) …$", ended.stdout, re.MULTILINE), strict=True)
    with Client(text_server.address) as client:
        encoding = client.encode(texts)
    assert encoding.pooled is not None
    assert [int(length) for length in lengths] == encoding.lengths.tolist()
    printed = [[float(number) for number in line.split()] for line in numbers]
    np.testing.assert_allclose(printed, encoding.pooled[:, :3], rtol=0, atol=1e-5)
    assert "INVALID_ARGUMENT: texts.values[0] is empty" in ended.stdout
