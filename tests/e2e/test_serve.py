"""`headwaiter serve` leads from a name on a hub, a checkpoint or a bundle to a server, with one command."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from headwaiter_client import Client
from testbed.server_process import RunningServer, running_server
from tests.support.documents import GETTING_STARTED, commands
from tests.support.loopback_hub import TOKEN, LoopbackHub, loopback_hub
from tests.support.server.bundles import read_manifest

# As the installed command does.
PROGRAM = [sys.executable, "-m", "headwaiter_serve"]
CPU = ["--provider", "cpu"]
TEXTS = ["the bread is fresh", "rain falls on stone"]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    """A hub that the processes of the test call, with caches of their own."""
    with loopback_hub() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "huggingface"))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        yield running


def bundles(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "cache").glob("headwaiter/bundles/*") if path.is_dir()]


def test_the_command_of_the_page_leads_from_a_name_to_vectors_and_exports_once(
    hub: LoopbackHub, text_checkpoint: Path, text_server: RunningServer, tmp_path: Path
) -> None:
    ((_, serve, name, *_),) = (words for words in commands(GETTING_STARTED, tmp_path) if words[0] == "headwaiter")
    commit, exported = hub.add(name, text_checkpoint), set[int]()
    with Client(text_server.address) as client:
        expected = client.encode(TEXTS)
    for start in range(2):
        with (
            (tmp_path / "log").open("wb") as log,
            running_server(Path(name), CPU, program=[*PROGRAM, serve], log=log) as server,
        ):
            with Client(server.address) as client:
                encoding = client.encode(TEXTS)
            assert TOKEN.encode() not in Path(f"/proc/{server.process.pid}/environ").read_bytes()
            libraries = Path(f"/proc/{server.process.pid}/maps").read_text()
        assert server.process.returncode == 0
        assert "onnxruntime" in libraries
        assert "libtorch" not in libraries
        np.testing.assert_array_equal(encoding.pooled, expected.pooled)
        assert encoding.model.name == name.partition("/")[2]
        assert encoding.model.results_digest == expected.model.results_digest
        (bundle,) = bundles(tmp_path)
        exported.add((bundle / "manifest.json").stat().st_ino)
        assert (f": {bundle}\n" in (tmp_path / "log").read_text()) == (start == 1)
        hub.status = 503  # The second start needs no hub.
    assert len(exported) == 1
    assert hub.sent.count("model.safetensors") == 1
    source = read_manifest(bundle).source
    assert (source.name, source.revision) == (name, commit)


def test_flags_of_the_export_change_the_vectors(hub: LoopbackHub, text_checkpoint: Path, text_bundle: Path) -> None:
    flags = [*CPU, "--pooling", "cls", "--no-normalize"]
    with (
        running_server(text_checkpoint, flags, program=[*PROGRAM, "serve"]) as server,
        running_server(text_bundle, CPU) as usual,
        Client(server.address) as client,
        Client(usual.address) as usual_client,
    ):
        pooled = client.encode(TEXTS).pooled
        hidden = usual_client.encode(TEXTS, hidden=True).hidden
    np.testing.assert_allclose(pooled, [rows[0] for rows in hidden], atol=1e-5)


def test_a_port_in_use_is_told_before_the_export(hub: LoopbackHub, text_checkpoint: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        command = [*PROGRAM, "serve", str(text_checkpoint), *CPU, "--address", address]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 1
    assert f"--address {address}" in ran.stderr
    assert (ran.stdout, bundles(tmp_path)) == ("", [])


def test_a_bundle_is_served_as_it_is(hub: LoopbackHub, text_bundle: Path, tmp_path: Path) -> None:
    with (
        running_server(text_bundle, CPU, program=[*PROGRAM, "serve"]) as server,
        Client(server.address) as client,
    ):
        assert client.encode(TEXTS).model.name == "tiny-text"
    assert (bundles(tmp_path), hub.requests) == ([], 0)


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("nobody/nothing",), 1, "nobody/nothing"),
        (("nobody/nothing", "--threads", "many"), 2, "--threads 'many'"),
        (("./nothing",), 1, "OWNER/NAME"),
        (("model.onnx",), 1, "an ONNX file"),
    ],
    ids=["name", "flag", "folder", "onnx"],
)
def test_what_cannot_be_served_is_one_sentence(
    arguments: tuple[str, ...], status: int, words: str, hub: LoopbackHub, tmp_path: Path
) -> None:
    ran = subprocess.run([*PROGRAM, "serve", *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == status
    assert words in ran.stderr
    assert ran.stderr.count("\n") == 1
    assert (ran.stdout, bundles(tmp_path)) == ("", [])


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_during_the_export_ends_both_processes_and_leaves_no_bundle(
    number: signal.Signals, status: int, hub: LoopbackHub, text_checkpoint: Path, tmp_path: Path
) -> None:
    command = [*PROGRAM, "serve", str(text_checkpoint), *CPU]
    # A terminal sends Ctrl-C to all processes of the group, and a supervisor SIGTERM to the first.
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0) as starting:
        assert starting.stdout is not None
        assert starting.stdout.readline()  # The export has begun to read the checkpoint.
        if number is signal.SIGINT:
            os.killpg(starting.pid, number)
        else:
            starting.terminate()
        # Until the last process that has the pipe ends.
        starting.stdout.read()
        assert starting.wait() == status
    assert bundles(tmp_path) == []
