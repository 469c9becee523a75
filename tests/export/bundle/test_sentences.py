"""The sentences that calibrate int8 are part of the package, in many languages, and depend on nothing else."""

import hashlib
import unicodedata
from pathlib import Path
from pydoc_data.topics import topics

import pytest

from headwaiter_export.bundle import export
from headwaiter_export.bundle.export import export_bundle
from headwaiter_export.bundle.verification import measure_neighbours
from headwaiter_export.checkpoints.reader import read_checkpoint
from headwaiter_proto.encoder_pb2 import PRECISION_INT8
from headwaiter_server.runtime.bundle import Bundle
from tests.export.conftest import keep_graphs

# SHA-256 of each version of the sentences. A change of the sentences changes the int8 weights, so it is a new version.
VERSIONS = {"sentences-1": "61cab5c50fcb843846ce06b1d096e3d00d1b88f941755bb6837c42b0ff2f336b"}


@pytest.mark.exhaustive
def test_the_int8_graph_and_its_parity_do_not_depend_on_the_help_pages_of_python(
    text_bundle: Path, text_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(topics):
        monkeypatch.delitem(topics, name)
    keep_graphs(monkeypatch, "packed-cpu.fp32.onnx", "packed-cpu.int8.onnx")
    monkeypatch.setattr(export, "measure_neighbours", measure_neighbours)
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
    from headwaiter_export.bundle.sentences import tokenize

    text = read_checkpoint(text_checkpoint).text
    assert text is not None
    tokenized = tokenize(text, 3)
    calibration, measured = (
        {tuple(ids.tolist()) for ids in part} for part in (tokenized.calibration, tokenized.measured)
    )
    assert calibration.isdisjoint(measured)
    assert 0 <= len(calibration) - len(measured) <= 1
    assert all(3 <= len(ids) <= text.max_tokens == 32 for ids in calibration | measured)
    assert len(calibration) >= 5
