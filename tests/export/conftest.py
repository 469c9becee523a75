"""What every test of the export may ask for."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headwaiter_export import bundle
from headwaiter_export.bundle import export_bundle
from headwaiter_export.encoder import Encoder
from headwaiter_proto.encoder_pb2 import PRECISION_INT8, PRECISION_UNSPECIFIED
from tests.export.helpers import random_encoder
from tests.shared_folders import SharedFolders


@pytest.fixture(scope="session", autouse=True)
def _operators(operators: None) -> None:
    """Read the tracer's operators once for all the graphs that are traced here."""


@pytest.fixture
def folder(text_checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of a good sentence-transformers folder, to spoil."""
    return Path(shutil.copytree(text_checkpoint, tmp_path / "model"))


def keep_graphs(monkeypatch: pytest.MonkeyPatch, *files: str) -> None:
    """Let bundles have these graphs alone: to trace one takes a second or two."""
    monkeypatch.setattr(bundle, "GRAPHS", [plan for plan in bundle.GRAPHS if plan.file in files])
    monkeypatch.setattr(bundle, "_measure_neighbours", lambda *_: None)  # of the graph in int8
    # Of no precision that is written.
    monkeypatch.setattr(bundle, "ATTEND", replace(bundle.ATTEND, precision=PRECISION_UNSPECIFIED))
    monkeypatch.setattr(bundle, "_check_attention", lambda *_: False)


@pytest.fixture
def packed_cpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let bundles have one graph, where what is asked is the same for all."""
    keep_graphs(monkeypatch, "packed-cpu.fp32.onnx")


def export_masked(encoder: Encoder, folder: Path) -> None:
    """Export without int8, which changes linear layers alone, and without Attend, whose masks have their own test."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        keep_graphs(monkeypatch, *(plan.file for plan in bundle.GRAPHS if plan.precision != PRECISION_INT8))
        export_bundle(encoder, None, folder, folder.name)


@pytest.fixture(scope="session")
def causal_encoder() -> Encoder:
    """A causal encoder with rotary positions."""
    return random_encoder(feature_width=6, layers=1, mask="causal", positions="rotary")


@pytest.fixture(scope="session")
def causal_bundle(causal_encoder: Encoder, shared_folders: SharedFolders) -> Path:
    """The bundle "tiny-causal"."""
    return shared_folders.get("tiny-causal", lambda folder: export_masked(causal_encoder, folder))


@pytest.fixture(scope="session")
def self_excluding_encoder() -> Encoder:
    """A self-excluding encoder of attention alone, where a token looks at all others alike.

    Its queries are zero, and so a token's own value is the only way from it to its output.
    """
    bare: dict[str, Any] = {"layers": 1, "d_ff": 0, "residual": False, "norm": "none", "positions": "none"}
    encoder = random_encoder(feature_width=6, mask="self_excluding", embedding_norm=False, **bare)
    for parameter in encoder.get_submodule("layers.0.attention.query").parameters():
        parameter.data.zero_()
    return encoder


@pytest.fixture(scope="session")
def self_excluding_bundle(self_excluding_encoder: Encoder, shared_folders: SharedFolders) -> Path:
    """The bundle "tiny-self-excluding"."""
    return shared_folders.get("tiny-self-excluding", lambda folder: export_masked(self_excluding_encoder, folder))
