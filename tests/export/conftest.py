"""Fixtures for the tests of the export."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from headwaiter_export.bundle import export, graphs
from headwaiter_export.bundle.export import export_bundle
from headwaiter_export.bundle.graphs import GRAPHS, WEIGHTS_FILES
from headwaiter_export.checkpoints.tokenizers import comparison
from headwaiter_export.checkpoints.tokenizers.cost import cost_problem
from headwaiter_export.cli import main
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_export.graphs.float16 import to_float16
from headwaiter_export.graphs.tracing import WeightsFile, trace
from headwaiter_proto.encoder_pb2 import PRECISION_FP16, PRECISION_FP32, PRECISION_INT8
from tests.support.export.helpers import random_encoder
from tests.support.shared_folders import SharedFolders


@pytest.fixture(scope="package", autouse=True)
def _tokenizer_costs() -> Iterator[None]:
    """Measure the cost of equal tokenizers once, because that takes a second or two."""

    @cache
    def problem(content: str) -> str | None:
        return cost_problem(Tokenizer.from_str(content))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(comparison, "cost_problem", lambda tokenizer: problem(tokenizer.to_str()))
        yield


@pytest.fixture
def folder(text_checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of a valid sentence-transformers folder, for tests that damage it."""
    return Path(shutil.copytree(text_checkpoint, tmp_path / "model"))


def keep_graphs(monkeypatch: pytest.MonkeyPatch, *files: str) -> None:
    """Limit bundles to these graphs, because tracing a graph takes a second or two."""
    kept = [plan for plan in GRAPHS if plan.file in files]
    monkeypatch.setattr(export, "DEFAULT_GRAPHS", kept)
    # The command chooses among these.
    monkeypatch.setattr(graphs, "EVERY_GRAPH", kept)


@pytest.fixture
def packed_cpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit bundles to one graph, for tests that give the same result with any graph."""
    keep_graphs(monkeypatch, "packed-cpu.fp32.onnx")


Refused = Callable[..., None]


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Runs a command that would write a bundle; it must fail in one line that contains every fact."""

    def run(arguments: Sequence[object], *facts: str) -> None:
        capsys.readouterr()  # transformers shows progress when a test saves a model.
        assert main([*map(str, arguments), "-o", str(tmp_path / "bundle")]) == 1
        printed = capsys.readouterr().err
        assert printed.startswith("headwaiter-export: ")
        assert printed.count("\n") == 1
        for fact in facts:
            assert fact in printed
        assert not (tmp_path / "bundle").exists()

    return run


def write_plans(encoder: Encoder, folder: Path) -> None:
    """Write the graphs of a bundle in fp32 and fp16, unchecked and without the other files."""
    folder.mkdir()
    for precision, converted in ((PRECISION_FP32, encoder), (PRECISION_FP16, to_float16(encoder))):
        with WeightsFile(folder / WEIGHTS_FILES[precision]) as weights:
            for plan in GRAPHS:
                if plan.precision == precision:
                    weights.write_graph(trace(converted, plan.layout), folder / plan.file)


@pytest.fixture(scope="session")
def causal_encoder() -> Encoder:
    """A causal encoder with rotary positions."""
    return random_encoder(feature_width=6, layers=1, mask="causal", positions="rotary")


@pytest.fixture(scope="session")
def causal_bundle(causal_encoder: Encoder, shared_folders: SharedFolders, runs_graphs: None) -> Path:
    """The graphs of the causal encoder, without the other files of a bundle."""
    return shared_folders.get("tiny-causal", lambda folder: write_plans(causal_encoder, folder))


@pytest.fixture(scope="session")
def self_excluding_encoder() -> Encoder:
    """A self-excluding encoder without positions."""
    return random_encoder(feature_width=6, layers=1, mask="self_excluding", positions="none")


@pytest.fixture(scope="session")
def self_excluding_bundle(self_excluding_encoder: Encoder, shared_folders: SharedFolders, runs_graphs: None) -> Path:
    """The bundle "tiny-self-excluding", without int8, whose masks are the same, and without attention weights."""

    def export_masked(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as monkeypatch:
            keep_graphs(monkeypatch, *(plan.file for plan in GRAPHS if plan.precision != PRECISION_INT8))
            export_bundle(self_excluding_encoder, None, folder, folder.name)

    return shared_folders.get("tiny-self-excluding", export_masked)
