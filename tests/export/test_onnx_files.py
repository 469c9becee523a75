"""A bundle of an ONNX file gives what ONNX Runtime alone gives for the file, one sequence at a time."""

from pathlib import Path

import numpy as np
import pytest

from headwaiter_export.cli import main
from headwaiter_proto.encoder_pb2 import (
    ISOLATION_MIXED,
    POOLING_MEAN,
    PRECISION_FP32,
    REFERENCE_SOURCE_ONNX_FILE,
    REFERENCE_SOURCE_ONNX_FILE_AND_PYTORCH,
)
from headwaiter_server.runtime.model import Model, open_model
from headwaiter_server.runtime.packing import pack
from tests.support.checkpoints import VOCABULARY, save_bert, save_sentence_transformer, save_tokenizer
from tests.support.export.helpers import assert_close_to_scale
from tests.support.export.onnx_files import MAX_TOKENS, run_file, save_files
from tests.support.oracle import Array
from tests.support.tiers import exhaustive

pytestmark = pytest.mark.usefixtures("runs_graphs", "runs_transformers")

LENGTHS = (9, 2, MAX_TOKENS, 9, 5, 1)


def drawn(lengths: tuple[int, ...] = LENGTHS) -> list[Array]:
    rng = np.random.default_rng(3)
    return [rng.integers(0, len(VOCABULARY), n) for n in lengths]


def exported(path: Path, *flags: str) -> Model:
    """Export a file, and open its bundle as a server does."""
    bundle = (path if path.is_dir() else path.parent) / "bundle"
    assert main(["onnx", str(path), "-o", str(bundle), *flags]) == 0
    return open_model(bundle, "cpu", "auto", threads=1)


@pytest.mark.parametrize("opset", [11, 18, *exhaustive(14, 17)])
def test_a_file_of_rows_is_served_with_the_pooling_beside_it(opset: int, tmp_path: Path) -> None:
    file = save_files(tmp_path, opset)
    save_sentence_transformer(tmp_path)
    model = exported(tmp_path)
    manifest, sequences = model.bundle.manifest, drawn()
    assert (manifest.pooling, manifest.normalized, manifest.max_text_tokens) == (POOLING_MEAN, True, 32)
    assert {prompt.name for prompt in manifest.prompts} == {"query", "passage", "document"}
    assert manifest.reference_source == REFERENCE_SOURCE_ONNX_FILE
    assert (manifest.padding.isolation, model.precision) == (ISOLATION_MIXED, PRECISION_FP32)
    batch = pack(sequences)
    outputs = model.graph.run(batch, hidden=True)
    assert outputs.hidden is not None
    assert outputs.pooled is not None
    for rows, vector, ids in zip(batch.split(outputs.hidden), outputs.pooled, sequences, strict=True):
        expected = run_file(file, "last_hidden_state", ids)
        assert_close_to_scale(rows, expected, 1e-6)
        assert_close_to_scale(vector, expected.mean(0), 1e-6)


def test_a_file_is_compared_with_pytorch_if_its_checkpoint_is_there(tmp_path: Path) -> None:
    save_files(tmp_path / "files")
    save_bert(tmp_path / "checkpoint")
    save_tokenizer(tmp_path / "checkpoint")
    model = exported(tmp_path / "files", "--pytorch", str(tmp_path / "checkpoint"))
    assert model.bundle.manifest.reference_source == REFERENCE_SOURCE_ONNX_FILE_AND_PYTORCH


def test_a_checkpoint_of_other_results_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_files(tmp_path / "files")
    save_bert(tmp_path / "checkpoint", hidden_act="relu")
    bundle = tmp_path / "bundle"
    flags = ["-o", str(bundle), "--pytorch", str(tmp_path / "checkpoint")]
    assert main(["onnx", str(tmp_path / "files"), *flags]) == 1
    assert "PyTorch" in capsys.readouterr().err
    assert not bundle.exists()
