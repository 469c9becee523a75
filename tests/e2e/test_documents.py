"""The pages for users hold what they say: their code runs against a server as it stands there."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trustme

from headwaiter_client import Client
from headwaiter_client.cli import main
from headwaiter_server.config import read_settings
from testbed.server_process import RunningServer
from tests.documents import CLIENT, README, blocks, commands

TEXTS = "the bread is fresh\nrain falls on stone\na table for two please\n"


@pytest.fixture(autouse=True)
def _where_a_reader_might_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Go to a folder with the files that pages name."""
    monkeypatch.chdir(tmp_path)
    Path("texts.txt").write_text(TEXTS)
    authority = trustme.CA()
    authority.cert_pem.write_to_path("ca.pem")
    issued = authority.issue_cert("client@example.org")
    issued.cert_chain_pems[0].write_to_path("client.pem")
    issued.private_key_pem.write_to_path("client-key.pem")


@pytest.mark.parametrize("page", [README, CLIENT], ids=lambda page: page.name)
def test_the_python_of_a_page_runs_from_top_to_bottom(page: Path, text_server: RunningServer) -> None:
    names: dict[str, Any] = {}
    ran = 0
    for block in blocks(page, "python"):
        if "headwaiter_export" not in block:  # Which tests/export runs.
            exec(compile(block.replace("localhost:50051", text_server.address), page.name, "exec"), names)
            ran += 1
    for value in names.values():
        if isinstance(value, Client):
            value.close()
    assert ran
    assert names["encoding"].model.name == "tiny-text"


def test_the_commands_of_the_readme_do_what_they_say(
    text_server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAITER_CLIENT_ADDRESS", text_server.address)
    ran = set()
    for program, *arguments in commands(README, tmp_path):
        if program == "headwaiter-client":
            assert main(arguments) == 0, arguments
            ran.add(arguments[0])
        if program == "headwaiter-server":
            assert read_settings(arguments, {}).bundle == Path("my-bundle")
    assert ran >= {"probe", "models", "encode", "similar", "bench", "attend"}
    assert np.load("vectors.npy").shape == (3, 32)
    assert Path("head.png").stat().st_size
