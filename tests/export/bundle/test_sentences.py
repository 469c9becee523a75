"""The sentences that calibrate int8 are part of the package, in many languages, and depend on nothing else."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headwaiter_export.bundle.export import export_bundle
from headwaiter_export.bundle.sentences import tokenize
from headwaiter_export.bundle.verification import same_order
from headwaiter_export.checkpoints.reader import read_checkpoint
from headwaiter_export.config.choices import Mask
from headwaiter_server.runtime.bundle import Bundle
from tests.export.conftest import keep_graphs
from tests.support.checkpoints import save_tokenizer
from tests.support.export.family_checkpoints import save_family

# SHA-256 of each version of the sentences. A change of the sentences changes the int8 weights, so it is a new version.
VERSIONS = {"sentences-1": "61cab5c50fcb843846ce06b1d096e3d00d1b88f941755bb6837c42b0ff2f336b"}


def test_parity_names_the_sentences_of_a_text_model_only(text_bundle: Path, feature_bundle: Path) -> None:
    assert Bundle.open(text_bundle).parity().sentences in VERSIONS
    assert Bundle.open(feature_bundle).parity().sentences == ""


def test_each_version_of_the_sentences_stays_the_same() -> None:
    from headwaiter_export.bundle.sentences import SENTENCES, sentences

    assert hashlib.sha256("\n".join(sentences()).encode()).hexdigest() == VERSIONS[SENTENCES]


def test_sentences_that_calibrate_are_not_measured_and_all_fit_the_model(text_checkpoint: Path) -> None:
    model = read_checkpoint(text_checkpoint)
    text = model.text
    assert text is not None
    tokenized = tokenize(text, replace(model.encoder.config, mask=Mask.SELF_EXCLUDING))
    calibration, measured = (
        {tuple(ids.tolist()) for ids in part} for part in (tokenized.calibration, tokenized.measured)
    )
    assert calibration.isdisjoint(measured)
    assert 0 <= len(calibration) - len(measured) <= 1
    assert all(2 <= len(ids) <= text.max_tokens == 32 for ids in calibration | measured)
    assert len(calibration) >= 5


@pytest.mark.parametrize(
    ("actual", "expected", "share"),
    [
        ([[1], [2], [3]], [[10], [20], [30]], 1),
        ([[3], [2], [1]], [[10], [20], [30]], 0),
        # One of three pairs has another order.
        ([[2], [1], [3]], [[10], [20], [30]], 2 / 3),
        # Equal scores lose an order, and have none in PyTorch.
        ([[1], [1], [3]], [[10], [20], [30]], 2 / 3),
        ([[1], [2], [3]], [[10], [10], [30]], 1),
        ([[1], [2]], [[5], [5]], 1),
        # Each label has an order of its own.
        ([[1, 9], [2, 8]], [[0, 0], [1, 1]], 1 / 2),
    ],
)
def test_the_order_of_scores_is_compared_in_pairs(
    actual: list[list[float]], expected: list[list[float]], share: float
) -> None:
    assert same_order(np.array(actual, np.float32), np.array(expected, np.float32)) == pytest.approx(share)


@pytest.mark.usefixtures("runs_transformers")
def test_a_model_of_pairs_is_calibrated_on_pairs_with_their_types(tmp_path: Path) -> None:
    save_family(tmp_path, "Bert", "ForSequenceClassification", id2label={0: "score"}, vocab_size=100)
    save_tokenizer(tmp_path)
    model = read_checkpoint(tmp_path)
    assert model.text is not None
    assert model.text.pairs
    tokenized = tokenize(model.text, model.encoder.config)
    for sequence in (*tokenized.calibration, *tokenized.measured):
        types = sequence[:, 1]
        assert types[0] == 0
        assert (np.diff(types) >= 0).all()
    assert any(sequence[-1, 1] == 1 for sequence in tokenized.measured)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("runs_graphs", "runs_transformers")
def test_the_parity_of_a_reranker_has_the_share_of_pairs_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_graphs(monkeypatch, "packed-cpu.fp32.onnx", "packed-cpu.int8.onnx")
    save_family(tmp_path / "checkpoint", "Bert", "ForSequenceClassification", id2label={0: "score"}, vocab_size=100)
    save_tokenizer(tmp_path / "checkpoint")
    model, printed = read_checkpoint(tmp_path / "checkpoint"), list[str]()
    export_bundle(model.encoder, model.text, tmp_path / "bundle", "reranker", printed.append)
    fp32, int8 = sorted(Bundle.open(tmp_path / "bundle").parity().graphs, key=lambda graph: graph.precision)
    assert not fp32.HasField("same_order")
    assert not int8.HasField("same_nearest_neighbour")
    assert 0.5 < int8.same_order <= 1
    assert any(f"{int8.same_order:.1%} keep the order" in line for line in printed)
