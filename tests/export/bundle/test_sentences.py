"""The sentences that calibrate int8 are part of the package, in many languages, and depend on nothing else."""

import hashlib
import unicodedata
from dataclasses import replace
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import pytest

from headwaiter_export.bundle import export
from headwaiter_export.bundle.export import export_bundle
from headwaiter_export.bundle.sentences import tokenize
from headwaiter_export.bundle.verification import measure_sentences, same_order
from headwaiter_export.checkpoints.reader import read_checkpoint
from headwaiter_export.config.choices import Mask
from headwaiter_proto.encoder_pb2 import PRECISION_INT8
from headwaiter_server.runtime.bundle import Bundle
from tests.export.conftest import keep_graphs
from tests.support.checkpoints import save_tokenizer
from tests.support.export.family_checkpoints import save_family

# SHA-256 of each version of the sentences. A change of the sentences changes the int8 weights, so it is a new version.
VERSIONS = {"sentences-1": "61cab5c50fcb843846ce06b1d096e3d00d1b88f941755bb6837c42b0ff2f336b"}


@pytest.mark.exhaustive
def test_the_int8_graph_and_its_parity_do_not_depend_on_the_help_pages_of_python(
    text_bundle: Path, text_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(topics):
        monkeypatch.delitem(topics, name)
    keep_graphs(monkeypatch, "packed-cpu.fp32.onnx", "packed-cpu.int8.onnx")
    monkeypatch.setattr(export, "measure_sentences", measure_sentences)
    model = read_checkpoint(text_checkpoint)
    export_bundle(model.encoder, model.text, tmp_path / "bundle", "tiny-text")
    folders = text_bundle, tmp_path / "bundle"
    weights = [(folder / "weights.int8.bin").read_bytes() for folder in folders]
    assert weights[0] == weights[1]
    graphs = [Bundle.open(folder).parity().graphs for folder in folders]
    shares = [[each.same_nearest_neighbour for each in both if each.precision == PRECISION_INT8] for both in graphs]
    assert shares[0] == shares[1] != [0]


def test_parity_names_the_sentences_of_a_text_model_only(text_bundle: Path, feature_bundle: Path) -> None:
    assert Bundle.open(text_bundle).parity().sentences in VERSIONS
    assert Bundle.open(feature_bundle).parity().sentences == ""


def test_each_version_of_the_sentences_stays_the_same() -> None:
    from headwaiter_export.bundle.sentences import SENTENCES, sentences

    assert hashlib.sha256("\n".join(sentences()).encode()).hexdigest() == VERSIONS[SENTENCES]


def test_the_sentences_have_many_scripts_and_lengths() -> None:
    from headwaiter_export.bundle.sentences import sentences

    found = sentences()
    assert len(found) == len(set(found)) >= 400
    assert all(text == text.strip() != "" for text in found)
    scripts = {unicodedata.name(letter).split()[0] for text in found for letter in text if letter.isalpha()}
    expected = "LATIN CYRILLIC GREEK ARABIC HEBREW DEVANAGARI BENGALI TAMIL THAI CJK HIRAGANA HANGUL GEORGIAN ARMENIAN"
    assert scripts >= set(expected.split())
    lengths = sorted(map(len, found))
    assert (lengths[0] < 10, lengths[-1] > 300) == (True, True)
    # Code, markup and records.
    assert sum(any(symbol in text for symbol in "={}[]<>/") for text in found) >= 20


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
