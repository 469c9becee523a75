"""An encoder is compared with its owner's code: equal outputs pass, others are refused with their difference."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch

from headwaiter_export.bundle.atomic_folder import BundleError
from headwaiter_export.bundle.export import export_bundle
from headwaiter_export.bundle.own_code import compare_with_file
from headwaiter_export.config.choices import DecoderInput
from headwaiter_export.config.decoder import DecoderConfig
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_export.encoder.reference import sequence_of_parts
from tests.export.conftest import Refused
from tests.support.checkpoints import write_json
from tests.support.export.helpers import assert_mentions, oracle_of, random_encoder, random_sequences
from tests.support.oracle import Array

Arrays = dict[str, Any]
LENGTHS = (3, 1, 7)


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return random_encoder(vocabulary_size=50, layers=1, pooling="mean")


@pytest.fixture
def outputs(encoder: Encoder) -> Arrays:
    """Inputs, and the outputs of formulas in numpy."""
    sequences, oracle = random_sequences(encoder.config, LENGTHS), oracle_of(encoder)
    hidden = [oracle.hidden(sequence) for sequence in sequences]
    return {
        "input_ids": np.concatenate(sequences),
        "lengths": np.array(LENGTHS),
        "hidden": np.concatenate(hidden),
        "pooled": np.stack([oracle.pooled(rows) for rows in hidden]),
    }


@pytest.mark.parametrize("names", [["hidden", "pooled"], ["hidden"], ["pooled"]], ids="+".join)
def test_the_outputs_of_formulas_are_accepted_with_their_difference(
    names: list[str], encoder: Encoder, outputs: Arrays, tmp_path: Path
) -> None:
    np.savez(tmp_path / "own.npz", **{name: outputs[name] for name in ["input_ids", "lengths", *names]})
    line = compare_with_file(tmp_path / "own.npz", encoder)
    for name in ("hidden", "pooled"):
        assert (f"{name} (limit" in line) == (name in names)
    assert str(tmp_path / "own.npz") in line


def _changed(name: str, change: Callable[[Array], Any]) -> Callable[[Arrays], Arrays]:
    return lambda arrays: {**arrays, name: change(arrays[name])}


def _without(*names: str) -> Callable[[Arrays], Arrays]:
    return lambda arrays: {name: value for name, value in arrays.items() if name not in names}


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        (_changed("hidden", lambda rows: rows + np.eye(*rows.shape) * 2e-2), ["hidden", "e-0"]),
        (_changed("pooled", lambda rows: rows * 1.01), ["pooled", "1e-05"]),
        (_changed("hidden", lambda rows: np.where(rows == rows[0, 0], np.nan, rows)), ["hidden"]),
        (_changed("hidden", lambda rows: rows[:-1]), ["hidden", "[10, 24]", "[11, 24]"]),
        (_changed("pooled", lambda rows: rows.astype(int)), ["pooled", "int64"]),
        (_changed("lengths", lambda lengths: lengths[:-1]), ["lengths"]),
        (_changed("lengths", lambda lengths: lengths * 0), ["lengths"]),
        (_changed("lengths", lambda lengths: lengths + 0.5), ["lengths"]),
        (_changed("lengths", lambda _: np.array([12, -1])), ["lengths"]),
        (_changed("input_ids", lambda ids: ids + 50), ["input_ids", "49"]),
        (_changed("input_ids", lambda ids: ids - 50), ["input_ids", "49"]),
        (_changed("input_ids", lambda ids: ids / 2), ["input_ids"]),
        (_changed("input_ids", lambda ids: ids[:, None]), ["input_ids", "[11, 1]"]),
        (_changed("input_ids", lambda ids: np.array(ids.tolist(), object)), ["input_ids"]),
        (_without("input_ids"), ["input_ids"]),
        (_without("lengths"), ["lengths"]),
        (_without("hidden", "pooled"), ["no outputs", "hidden, pooled, logits"]),
        (lambda arrays: {**arrays, "logits": arrays["pooled"]}, ["logits", "none"]),
    ],
)
def test_other_outputs_are_refused(
    change: Callable[[Arrays], Arrays], facts: list[str], encoder: Encoder, outputs: Arrays, tmp_path: Path
) -> None:
    np.savez(tmp_path / "own.npz", **change(outputs))
    with pytest.raises(BundleError) as refusal:
        compare_with_file(tmp_path / "own.npz", encoder)
    assert_mentions(refusal.value, str(tmp_path / "own.npz"), *facts)


@pytest.mark.parametrize("takes_ids", [True, False])
def test_the_rows_of_targets_are_compared(takes_ids: bool, tmp_path: Path) -> None:
    sizes = {"vocabulary_size": 50} if takes_ids else {"feature_width": 6}
    decoder = DecoderConfig(layers=1, d_ff=8, input=DecoderInput.TARGET, start_id=2 if takes_ids else None)
    encoder = random_encoder(**sizes, layers=1, pooling="none", decoder=decoder)
    rng, oracle = np.random.default_rng(0), oracle_of(encoder)
    sequences = [sequence_of_parts(encoder.config, source, target, rng) for source, target in ((3, 1), (1, 5), (4, 4))]
    rows = np.concatenate([oracle.hidden(each)[each[:, -1] == 1] for each in sequences])
    lengths = np.array([len(each) for each in sequences])
    given = np.concatenate(sequences)
    inputs: Arrays = {"input_ids": given[:, 0]} if takes_ids else {"features": given}
    np.savez(tmp_path / "own.npz", **inputs, lengths=lengths, hidden=rows)
    assert "hidden (limit" in compare_with_file(tmp_path / "own.npz", encoder)
    np.savez(tmp_path / "own.npz", **inputs, lengths=lengths[::-1], hidden=rows)
    with pytest.raises(BundleError) as refusal:
        compare_with_file(tmp_path / "own.npz", encoder)
    assert_mentions(refusal.value, str(tmp_path / "own.npz"), "target")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 but no zip file", b"\x93NUMPY\x01"])
def test_a_file_that_is_no_npz_is_refused(content: bytes, encoder: Encoder, tmp_path: Path) -> None:
    (tmp_path / "own.npz").write_bytes(content)
    with pytest.raises(BundleError) as refusal:
        compare_with_file(tmp_path / "own.npz", encoder)
    assert_mentions(refusal.value, str(tmp_path / "own.npz"), "input_ids", "numpy.savez")


def test_the_command_compares_before_it_writes_graphs(
    encoder: Encoder, outputs: Arrays, tmp_path: Path, refused: Refused
) -> None:
    config, weights, own = tmp_path / "encoder.json", tmp_path / "encoder.safetensors", tmp_path / "own.npz"
    write_json(config, asdict(encoder.config))
    safetensors.torch.save_file(encoder.state_dict(), weights)
    np.savez(own, **_changed("hidden", lambda rows: rows + 0.01)(outputs))
    refused(["module", config, weights, "--compare", own], "hidden", str(own), "0.0001")


def test_a_function_that_returns_an_array_is_refused(encoder: Encoder, tmp_path: Path) -> None:
    with pytest.raises(BundleError) as refusal:
        export_bundle(encoder, None, str(tmp_path / "bundle"), "tiny", compare=lambda ids: ids)  # type: ignore[arg-type,return-value]
    assert_mentions(refusal.value, "ndarray", "hidden, pooled, logits")


def test_a_function_is_called_for_every_sequence_and_refused_if_it_differs(encoder: Encoder, tmp_path: Path) -> None:
    oracle, seen = oracle_of(encoder), list[int]()

    def own_code(ids: Array) -> Arrays:
        seen.append(len(ids))
        hidden = oracle.hidden(ids)
        return {"hidden": hidden, "pooled": oracle.pooled(hidden) * (1.01 if len(ids) == 48 else 1)}

    with pytest.raises(BundleError) as refusal:
        export_bundle(encoder, None, tmp_path / "bundle", "tiny", compare=own_code)
    assert_mentions(refusal.value, "your code", "pooled")
    assert len(seen) == 32
    assert {1, 2, 3, 48} <= {*seen}
    assert not (tmp_path / "bundle").exists()
