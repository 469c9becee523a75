"""The commands, as a user types them."""

import os
import socket
import subprocess
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from headwaiter_client import Client
from headwaiter_server.config import Settings, flag
from testbed.minilm import command
from testbed.server_process import Running

Ended = subprocess.CompletedProcess[str]


def test_encode_writes_the_vectors_that_the_client_gets(text_server: Running, tmp_path: Path) -> None:
    sentences = ["the bread is fresh", "rain falls on stone", "a table for two please"]
    (tmp_path / "sentences.txt").write_text("\n".join(sentences) + "\n")
    ended = run(
        "headwaiter-client", "encode", "sentences.txt", "-o", "out.npy", "--address", text_server.address, cwd=tmp_path
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("3 sentences, ")
    with Client(text_server.address) as client:
        expected = client.encode(sentences).pooled
    assert expected is not None
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, rtol=0, atol=1e-5)


def test_encode_takes_a_file_beyond_the_limits_of_a_request(text_server: Running, tmp_path: Path) -> None:
    sentences = ["bread " * (index % 7 + 1) for index in range(50)]
    (tmp_path / "sentences.txt").write_text("\n".join(sentences) + "\n")
    ended = run(
        "headwaiter-client", "encode", "sentences.txt", "-o", "out.npy", "--address", text_server.address, cwd=tmp_path
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    with Client(text_server.address) as client:
        alone = [client.encode([sentence]).pooled for sentence in sentences]
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), np.array(alone)[:, 0], rtol=0, atol=1e-5)


def test_similar_finds_the_line_that_says_the_same(text_server: Running, tmp_path: Path) -> None:
    (tmp_path / "sentences.txt").write_text("rain falls on stone\nthe bread is fresh\na table for two please\n")
    asked = ("similar", "the bread is fresh", "sentences.txt", "--top", "1")
    ended = run("headwaiter-client", *asked, "--address", text_server.address, cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "1.0000  line 2  the bread is fresh\n"


def test_bench_is_answered_by_the_server(text_server: Running, tmp_path: Path) -> None:
    (tmp_path / "sentences.txt").write_text("the bread is fresh\n")
    asked = ("bench", "sentences.txt", "--requests", "20")
    ended = run("headwaiter-client", *asked, "--address", text_server.address, cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("20 of 20 requests answered in ")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("", "line 11 of sentences.txt is empty: each line is a text"),
        ("bread " * 40, "line 11 of sentences.txt has 42 tokens"),
    ],
)
def test_encode_says_which_line_is_wrong_and_why(
    text_server: Running, tmp_path: Path, line: str, sentence: str
) -> None:
    (tmp_path / "sentences.txt").write_text("bread\n" * 10 + line + "\nrain\n")
    ended = run(
        "headwaiter-client", "encode", "sentences.txt", "-o", "out.npy", "--address", text_server.address, cwd=tmp_path
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith(f"headwaiter-client: {sentence}")
    assert ended.stderr.count("\n") == 1
    assert not (tmp_path / "out.npy").exists()


def test_probe_exits_with_0_only_when_a_server_serves(text_server: Running) -> None:
    ended = run("headwaiter-client", "probe", "--address", text_server.address)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        ended = run("headwaiter-client", "probe", "--address", address, "--timeout-s", "0.5")
    assert ended.returncode == 1
    assert ended.stderr.startswith("headwaiter-client: ")
    assert ended.stderr.count("\n") == 1


def test_models_describes_the_model_that_is_served(text_server: Running) -> None:
    ended = run("headwaiter-client", "models", "--address", text_server.address)
    assert (ended.returncode, ended.stderr) == (0, "")
    for text in ("tiny-text", "cpu", "fp32", "64 tokens", "32 tokens", "8 sequences, 96 tokens, 8,192 bytes"):
        assert text in ended.stdout


def test_the_servers_help_names_every_setting() -> None:
    ended = run("headwaiter-server", "--help")
    assert (ended.returncode, ended.stderr) == (0, "")
    for field in fields(Settings):
        assert (flag(field.name) if field.name != "bundle" else "BUNDLE") in ended.stdout


def run(name: str, *arguments: str, cwd: Path | None = None) -> Ended:
    """Run a command, with no settings from outside, on a terminal wide enough for any line."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAITER_")}
    return subprocess.run(
        [command(name), *arguments],
        env={**outside, "COLUMNS": "200"},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
