"""The commands, run as a user runs them."""

import asyncio
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from headwaiter_client import Client
from headwaiter_client.cli import main
from headwaiter_client.cli.activity import Series
from testbed.minilm import command_path
from testbed.server_process import RunningServer
from tests.support.e2e.in_process_server import serving
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


async def test_an_argument_without_a_flag_is_named(
    text_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "1").symlink_to(text_bundle)
    async with serving(None, models=tmp_path, model_control="on") as server:
        assert await asyncio.to_thread(main, ["unload", "huge", "--address", f"127.0.0.1:{server.port}"]) == 1
    assert capsys.readouterr().err.startswith("headwaiter-client: NAME: ")


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
