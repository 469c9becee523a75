"""The commands, run as a user runs them."""

import os
import re
import socket
import subprocess
from pathlib import Path

import numpy as np
import pytest

from headwaiter_client import Client
from headwaiter_client.calls.results import STAGES
from headwaiter_client.cli.activity import Series
from testbed.minilm import command_path
from testbed.server_process import RunningServer
from tests.support.e2e.prometheus_metrics import metrics_page

Completed = subprocess.CompletedProcess[str]


def test_encode_writes_the_vectors_of_the_client_although_it_splits_the_file(
    text_server: RunningServer, tmp_path: Path
) -> None:
    # The server accepts 8 sequences in a request.
    sentences = ["bread " * (index % 7 + 1) for index in range(50)]
    (tmp_path / "sentences.txt").write_text("\n".join(sentences) + "\n")
    completed = run(
        "headwaiter-client", "encode", "sentences.txt", "-o", "out.npy", "--address", text_server.address, cwd=tmp_path
    )
    assert (completed.returncode, completed.stderr) == (0, "")
    assert re.search(r"\b50\b", completed.stdout)
    with Client(text_server.address) as client:
        alone = [client.encode([sentence]).pooled for sentence in sentences]
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), np.array(alone)[:, 0], rtol=0, atol=1e-5)


def test_similar_finds_an_identical_line(text_server: RunningServer, tmp_path: Path) -> None:
    (tmp_path / "sentences.txt").write_text("rain falls on stone\nthe bread is fresh\na table for two please\n")
    arguments = ("similar", "the bread is fresh", "sentences.txt", "--top", "1")
    completed = run("headwaiter-client", *arguments, "--address", text_server.address, cwd=tmp_path)
    assert (completed.returncode, completed.stderr) == (0, "")
    (line,) = completed.stdout.splitlines()
    assert all(part in line for part in ("1.0000", "line 2", "the bread is fresh"))


def test_bench_is_answered_by_the_server(text_server: RunningServer, tmp_path: Path) -> None:
    (tmp_path / "sentences.txt").write_text("the bread is fresh\n")
    arguments = ("bench", "sentences.txt", "--requests", "20")
    completed = run("headwaiter-client", *arguments, "--address", text_server.address, cwd=tmp_path)
    assert (completed.returncode, completed.stderr) == (0, "")
    assert "20 of 20" in completed.stdout
    assert [line.split()[0] for line in completed.stdout.splitlines()[2:8]] == ["stage", *STAGES]


def test_top_shows_what_the_server_does(text_server: RunningServer) -> None:
    command = [command_path("headwaiter-client"), "top", "--metrics", text_server.metrics_url, "--interval-s", "0.5"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as top, Client(text_server.address) as client:
        while top.poll() is None:
            client.encode(["the bread is fresh"] * 3)
        printed = top.communicate()[0]
    assert top.returncode == 0
    assert "\x1b" not in printed
    assert "versions: 1 ready" in printed
    device, row = re.search(r"device 0: (\d+)% busy", printed), re.search(r"^tiny-text 1 +(.*)", printed, re.MULTILINE)
    assert device
    assert row
    requests_per_s, errors_per_s, p50, unit, *_, batch_sequences, _, _, share = row[1].split()
    assert float(requests_per_s.replace(",", "")) > 1
    assert (errors_per_s, share) == ("0", f"{device[1]}%")
    # A page of metrics may be made between the two updates of a histogram, its sum and its count.
    assert float(batch_sequences) == pytest.approx(3, abs=0.2)
    assert 0 < float(p50) < 1000
    assert unit in ("ms", "s")


def test_top_reads_series_that_the_server_has(text_server: RunningServer) -> None:
    page = metrics_page(text_server.metrics_url)
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE))
    for series in Series:
        name, _, end = series.rpartition("_")
        if end in ("bucket", "count", "sum"):
            assert kinds[name] == "histogram"
        else:
            assert kinds[series] in ("counter", "gauge")


def test_probe_exits_with_0_only_if_the_server_is_serving(text_server: RunningServer) -> None:
    completed = run("headwaiter-client", "probe", "--address", text_server.address)
    assert (completed.returncode, completed.stdout, completed.stderr) == (0, "", "")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        completed = run("headwaiter-client", "probe", "--address", address, "--timeout-s", "0.5")
    assert completed.returncode == 1
    assert completed.stderr.startswith("headwaiter-client: ")
    assert completed.stderr.count("\n") == 1


def test_models_describes_the_served_model(text_server: RunningServer) -> None:
    completed = run("headwaiter-client", "models", "--address", text_server.address)
    assert (completed.returncode, completed.stderr) == (0, "")
    for fact in ("tiny-text", "cpu", "fp32", "64", "32", "8", "96", "8,192"):
        assert re.search(rf"\b{fact}\b", completed.stdout), fact


def run(name: str, *arguments: str, cwd: Path | None = None) -> Completed:
    """Run a command without inherited settings, on a terminal wide enough for every line."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAITER_")}
    return subprocess.run(
        [command_path(name), *arguments],
        env={**environment, "COLUMNS": "200"},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
