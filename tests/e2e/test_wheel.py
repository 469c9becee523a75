"""The built wheel, installed with pip into an empty environment, serves a bundle and calls the server."""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from testbed.server_process import running_server
from tests.support.documents import ROOT


@pytest.mark.exhaustive
def test_the_wheel_serves_a_bundle_without_torch(
    tmp_path: Path, text_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run(pip, check=True)
    (wheel,) = tmp_path.glob("headwaiter-*.whl")
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    programs = tmp_path / "venv" / "bin"
    subprocess.run([programs / "pip", "install", "--quiet", f"{wheel}[server,cli]"], check=True)
    listed = subprocess.run([programs / "pip", "list", "--format", "json"], check=True, capture_output=True).stdout
    installed = {package["name"]: package["version"] for package in json.loads(listed)}
    assert installed["headwaiter"] == version("headwaiter")
    assert not installed.keys() & {"torch", "onnx", "transformers"}
    texts, vectors = tmp_path / "texts.txt", tmp_path / "vectors.npy"
    texts.write_text("the bread is fresh\n")
    with running_server(text_bundle, program=[str(programs / "headwaiter-server")]) as server:
        client: list[str | Path] = [
            programs / "headwaiter-client",
            "encode",
            texts,
            "-o",
            vectors,
            "--address",
            server.address,
        ]
        subprocess.run(client, check=True)
    assert vectors.stat().st_size > 0
