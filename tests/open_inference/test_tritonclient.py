"""Unmodified versions of tritonclient, each in an environment of its own, call a server of two models."""

import asyncio
import subprocess
from pathlib import Path

import pytest

from tests.documents import ROOT
from tests.e2e.in_process_server import serving
from tests.open_inference.separate_environment import tritonclient_python, variables

SCRIPT = Path(__file__).with_name("tritonclient_calls.py")


# The first version needs protobuf 4 or 5; the second shares protobuf 6 with our own copy of the messages.
@pytest.mark.exhaustive
@pytest.mark.parametrize("version", ["2.50.0", "2.73.0"])
async def test_tritonclient_works_unmodified(
    version: str, tmp_path: Path, text_bundle: Path, feature_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = tritonclient_python(tmp_path / "environment", version)
    for bundle in (text_bundle, feature_bundle):
        (tmp_path / "models" / bundle.name).mkdir(parents=True)
        (tmp_path / "models" / bundle.name / "1").symlink_to(bundle)
    async with serving(None, models=tmp_path / "models", model_control="on") as server:
        calls = await asyncio.create_subprocess_exec(
            python,
            SCRIPT,
            f"127.0.0.1:{server.port}",
            stdout=subprocess.PIPE,
            env={**variables(), "PYTHONPATH": str(ROOT / "proto")},
        )
        printed, _ = await calls.communicate()
    table = printed.decode()
    with capsys.disabled():
        print(f"\ntritonclient {version}\n{table}")
    assert calls.returncode == 0, table
