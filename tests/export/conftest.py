"""What every test of the export may ask for."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from headwaiter_export import bundle
from headwaiter_export.bundle import export_bundle
from headwaiter_export.encoder import Encoder
from headwaiter_export.lowering import PackedCpu
from headwaiter_proto.encoder_pb2 import PRECISION_FP32
from tests.export.helpers import random_encoder
from tests.once import Once


@pytest.fixture
def folder(text_checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of a good sentence-transformers folder, to spoil."""
    return Path(shutil.copytree(text_checkpoint, tmp_path / "model"))


@pytest.fixture
def packed_cpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let bundles have one graph, where what is asked is the same for all: to trace one takes a second."""
    alone = [plan for plan in bundle.GRAPHS if plan.lowering is PackedCpu and plan.precision == PRECISION_FP32]
    monkeypatch.setattr(bundle, "GRAPHS", alone)
    monkeypatch.setattr(bundle, "_measure_neighbours", lambda *_: None)  # of the graph in int8


@pytest.fixture(scope="session")
def causal_encoder() -> Encoder:
    """A causal encoder with rotary positions."""
    return random_encoder(feature_width=6, layers=1, mask="causal", positions="rotary")


@pytest.fixture(scope="session")
def causal_bundle(causal_encoder: Encoder, once: Once) -> Path:
    """The bundle "tiny-causal"."""
    return once("tiny-causal", lambda folder: export_bundle(causal_encoder, None, folder, "tiny-causal"))


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
def self_excluding_bundle(self_excluding_encoder: Encoder, once: Once) -> Path:
    """The bundle "tiny-self-excluding"."""
    name = "tiny-self-excluding"
    return once(name, lambda folder: export_bundle(self_excluding_encoder, None, folder, name))
