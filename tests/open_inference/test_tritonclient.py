"""Unmodified versions of tritonclient, each in an environment of its own, call a server of two models."""

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

from headwaiter_client import AsyncClient
from tests.support.documents import ROOT
from tests.support.e2e.in_process_server import connect, serving
from tests.support.open_inference.separate_environment import package_python, run_program

pytestmark = pytest.mark.usefixtures("starts_processes")

TEXTS = ["fresh bread", "rain falls on stone", "a table for two"]


# The first version needs protobuf 4 or 5; the second shares protobuf 6 with our own copy of the messages.
@pytest.mark.exhaustive
@pytest.mark.parametrize("version", ["2.50.0", "2.73.0"])
async def test_tritonclient_works_unmodified(
    version: str, tmp_path: Path, text_bundle: Path, feature_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    requirement = f"tritonclient[grpc,http]=={version}"
    python = await asyncio.to_thread(package_python, tmp_path / "environment", requirement)
    for bundle in (text_bundle, feature_bundle):
        (tmp_path / "models" / bundle.name).mkdir(parents=True)
        (tmp_path / "models" / bundle.name / "1").symlink_to(bundle)
    async with (
        serving(None, models=tmp_path / "models", model_control="on", http_api="on") as server,
        connect(server) as client,
    ):
        facts = tmp_path / "facts.json"
        facts.write_text(json.dumps({"url": f"127.0.0.1:{server.http_port}", **await facts_of(client)}))
        for script, argument in (
            ("tritonclient_calls", f"127.0.0.1:{server.port}"),
            ("tritonclient_http_calls", str(facts)),
        ):
            file = ROOT / "tests" / "support" / "open_inference" / f"{script}.py"
            code, table = await run_program(python, file, argument, PYTHONPATH=str(ROOT / "proto"))
            with capsys.disabled():
                print(f"\ntritonclient {version}\n{table}")
            assert code == 0, table


async def facts_of(client: AsyncClient) -> dict[str, object]:
    """Return texts and features, and their vectors over gRPC."""
    features = np.random.default_rng(0).normal(size=(2, 3, 6)).astype(np.float32)
    text_vectors = (await client.encode(TEXTS, model="tiny-text")).pooled
    feature_vectors = (await client.encode_features(list(features), model="tiny-features")).pooled
    return {
        "texts": TEXTS,
        "text_vectors": text_vectors.tolist(),
        "features": features.tolist(),
        "feature_vectors": feature_vectors.tolist(),
    }
