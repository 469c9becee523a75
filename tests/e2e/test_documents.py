"""The code and the commands on the pages for users run, and the tables of metrics are those of the server."""

import contextlib
import io
import json
import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import transformers
import trustme
from prometheus_client.parser import text_string_to_metric_families
from pyarrow import parquet

from headwaiter_client import Client
from headwaiter_client.cli import main, top
from headwaiter_server.settings.flags import read_settings
from testbed.server_process import RunningServer, running_server
from tests.support.documents import (
    CLIENT,
    COMING_FROM_SENTENCE_TRANSFORMERS,
    COMMANDS,
    EMBED_A_CORPUS,
    ERRORS,
    GETTING_STARTED,
    METRICS,
    README,
    RERANK,
    ROOT,
    blocks,
    commands,
    printed_result,
    steps,
    table_rows,
)
from tests.support.e2e.classifiers import save_classifier
from tests.support.loopback_hub import loopback_hub

TEXTS = "the bread is fresh\nrain falls on stone\na table for two please\n"


@pytest.fixture(autouse=True)
def _folder_with_the_files_that_pages_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("texts.txt").write_text(TEXTS)
    parquet.write_table(pa.table({"text": TEXTS.splitlines()}), "corpus.parquet")
    authority = trustme.CA()
    authority.cert_pem.write_to_path("ca.pem")
    issued = authority.issue_cert("client@example.org")
    issued.cert_chain_pems[0].write_to_path("client.pem")
    issued.private_key_pem.write_to_path("client-key.pem")


@pytest.mark.parametrize("page", [README, GETTING_STARTED, CLIENT], ids=lambda page: page.name)
def test_the_python_of_a_page_runs_from_top_to_bottom(page: Path, text_server: RunningServer) -> None:
    names: dict[str, Any] = {}
    for block in blocks(page, "python"):
        exec(compile(block.replace("localhost:50051", text_server.address), page.name, "exec"), names)
    for value in names.values():
        if isinstance(value, Client):
            value.close()
    assert names["encoding"].model.name == "tiny-text"


def test_the_example_of_errors_names_the_sequence(
    text_server: RunningServer, capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, Any] = {}
    (block,) = blocks(ERRORS, "python")
    exec(compile(block.replace("localhost:50051", text_server.address), ERRORS.name, "exec"), names)
    names["client"].close()
    assert capsys.readouterr().out.startswith("1 ")


def test_the_comparison_with_sentence_transformers_finds_no_difference(
    text_server: RunningServer, text_checkpoint: Path
) -> None:
    (code,) = blocks(COMING_FROM_SENTENCE_TRANSFORMERS, "python")
    printed = printed_by(code.replace("path/to/checkpoint", str(text_checkpoint)), text_server.address, {})
    cosine, _, text = printed.strip().partition(" ")
    assert float(cosine) >= 0.99999
    assert text in TEXTS.splitlines()


def test_the_readme_shows_what_its_python_prints(real_server: RunningServer) -> None:
    snippet, *_ = blocks(README, "python")
    assert len(snippet.splitlines()) <= 8
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(snippet.replace("localhost:50051", real_server.address), README.name, "exec"), {})
    assert printed.getvalue() == printed_result(README)


def test_the_first_server_of_the_readme_is_open_to_its_own_host_alone(tmp_path: Path) -> None:
    ((program, command, model, *flags),) = commands(README, tmp_path)
    assert (program, command) == ("headwaiter", "serve")
    settings = read_settings([model, *flags], {})
    assert settings.address == "127.0.0.1:50051"
    assert (settings.http_address, settings.http_api, settings.playground) == ("", "on", "on")


@pytest.mark.parametrize(
    ("page", "expected", "texts"),
    [
        (GETTING_STARTED, {"probe", "models", "encode", "similar"}, 2),
        (COMMANDS, {"probe", "models", "encode", "similar", "bench", "attend", "top"}, 3),
    ],
    ids=lambda value: value.name if isinstance(value, Path) else "",
)
def test_the_commands_of_a_page_run(
    page: Path,
    expected: set[str],
    texts: int,
    text_server: RunningServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HEADWAITER_CLIENT_ADDRESS", text_server.address)
    monkeypatch.setenv("HEADWAITER_CLIENT_METRICS", text_server.metrics_url)
    monkeypatch.setattr(top, "DEFAULT_INTERVAL_S", 0.1)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)  # On a terminal, `top` does not end.
    ran = set()
    for program, *arguments in commands(page, tmp_path):
        if program == "headwaiter-client":
            assert main(arguments) == 0, arguments
            ran.add(arguments[0])
        if program == "headwaiter-server":
            assert read_settings(arguments, {}).bundle == Path("my-bundle")
        if program == "headwaiter":
            assert arguments[0] == "serve"  # test_serve.py runs this command.
    assert ran == expected
    assert np.load("vectors.npy").shape == (texts, 32)
    assert Path("head.png").exists() == ("attend" in expected)


def printed_by(code: str, address: str, names: dict[str, Any]) -> str:
    """Run the Python code of a page against the server at an address, and return what the code prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(code.replace("localhost:50051", address), "page", "exec"), names)
    return printed.getvalue()


def test_the_tutorial_of_a_corpus_runs_from_top_to_bottom(
    real_server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAITER_CLIENT_ADDRESS", real_server.address)
    Path("examples").symlink_to(ROOT / "examples")
    printed, compared = "", 0
    for language, code in steps(EMBED_A_CORPUS):
        match language:
            case "python":
                printed = printed_by(code.replace("texts * 100", "texts * 2"), real_server.address, {})
            case "text":
                assert printed == code
                compared += 1
            case "sh" if code.startswith("headwaiter-client"):
                assert main(shlex.split(code)[1:]) == 0
    assert compared == 3
    vectors = np.array(parquet.read_table("with-vectors.parquet")["vector"].to_pylist())
    np.testing.assert_allclose(np.fromfile("vectors.f32", np.float32).reshape(-1, 384), vectors, rtol=0, atol=1e-5)
    large = parquet.read_table("large-vectors.parquet")["vector"].to_pylist()
    np.testing.assert_allclose(large, np.tile(vectors, (2, 1)), rtol=0, atol=1e-5)


def test_the_tutorial_of_a_reranker_runs_from_the_name_on_a_hub_to_the_ranking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = tmp_path / "checkpoint"
    model = save_classifier(checkpoint, "BertForSequenceClassification", labels=1, max_tokens=128)
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    _, serve = [words for words in commands(RERANK, tmp_path) if words[0] == "headwaiter"]
    code, more = blocks(RERANK, "python")
    with loopback_hub() as hub:
        hub.add(serve[2], checkpoint)
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "huggingface"))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        flags = ["--provider", "cpu", *serve[serve.index("--http-api") :]]
        program = [sys.executable, "-m", "headwaiter_serve", "serve"]
        with running_server(Path(serve[2]), flags, program=program) as server:
            names: dict[str, Any] = {}
            ranked, best = (printed_by(each, server.address, names) for each in (code, more))
            (curl,) = (block for block in blocks(RERANK, "sh") if block.startswith("curl"))
            script = curl.replace("http://localhost:9464", server.metrics_url.removesuffix("/metrics"))
            if shutil.which("curl"):
                reply = json.loads(subprocess.run(["bash", "-euc", script], capture_output=True, check=True).stdout)
                assert [set(result) for result in reply["results"]] == [{"index", "relevance_score"}]
    query, documents = names["query"], names["documents"]
    with torch.inference_mode():
        inputs = tokenizer([query] * len(documents), documents, padding=True, return_tensors="pt")
        order = model(**inputs).logits[:, 0].argsort(descending=True).tolist()
    assert [int(index) for index in re.findall(r"^\d\. document (\d),", ranked, re.MULTILINE)] == order
    assert best == f"{order[:2]}\n"


def test_the_tables_of_metrics_are_those_of_the_server(text_server: RunningServer) -> None:
    documented = {
        name: set(labels.split(",")) - {""}
        for names, _ in table_rows(METRICS)
        for name, labels in re.findall(r"`((?:headwaiter|process)_\w+)(?:\{([\w,]*)\})?`", names)
    }
    with Client(text_server.address) as client:
        client.encode(["the bread is fresh"])
    with urllib.request.urlopen(text_server.metrics_url) as response:
        families = list(text_string_to_metric_families(response.read().decode()))
    # The parser takes `_total` from the names of counters.
    names = {family.name + "_total" * (family.type == "counter"): family for family in families}
    assert documented.keys() == names.keys()
    for name, family in names.items():
        for sample in family.samples:
            assert sample.labels.keys() - {"le"} == documented[name], name
