"""The digest of results changes with what decides them, and not with the versions of the tools that wrote a bundle."""

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from headwaiter_proto.encoder_pb2 import PRECISION_FP32, PRECISION_INT8, Precision
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_server.runtime.bundle import GOLDEN, PARITY, TOKENIZER, Bundle
from headwaiter_server.runtime.results_digest import DECIDING_FIELDS, deciding_fields, results_digest, summary
from tests.support.server.bundles import copy, read_manifest, sign, write_manifest

WEIGHTS = "weights.fp32.bin"
# Limits, names, what follows from the weights and the computation, and what was measured.
DESCRIBING_FIELDS = {
    *("schema_version", "name", "versions", "files", "graphs", "attend", "padding", "without_rows"),
    *("vocabulary_size", "feature_width", "min_tokens", "max_tokens", "fixed_length", "class_row", "prefix_rows"),
    *("width", "hidden_width", "layers", "heads", "head_dim", "value_dim", "gated_width", "bias_heads", "row_width"),
    *("distance_products", "first_row_layers", "convolution_values", "sparse_entries", "token_types", "takes_pairs"),
    *("largest_magnitude", "residual_norm_ratio", "reference_module", "reference_source", "source"),
}


def test_every_field_of_the_manifest_decides_results_or_does_not() -> None:
    assert {field.name for field in Manifest.DESCRIPTOR.fields} == DECIDING_FIELDS | DESCRIBING_FIELDS
    assert not DECIDING_FIELDS & DESCRIBING_FIELDS


def digest(folder: Path, precision: Precision = PRECISION_FP32, max_tokens: int = 0) -> str:
    bundle = Bundle.open(folder)
    if max_tokens:
        bundle.limit_tokens(max_tokens)
    graph = next(graph for graph in bundle.manifest.graphs if graph.precision == precision)
    return bundle.results_digest(graph, bundle.golden())


def change_golden(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    with np.load(folder / GOLDEN) as stored:
        arrays = dict(stored)
    change(arrays)
    np.savez(folder / GOLDEN, **arrays)
    sign(folder, [GOLDEN])


def test_another_export_of_the_same_model_has_the_same_digest_of_results(text_bundle: Path, tmp_path: Path) -> None:
    folder = copy(text_bundle, tmp_path)
    # A new version of a tool writes other names, counts other nodes and measures other last digits.
    for path in folder.glob("*.onnx"):
        graph = onnx.load(path, load_external_data=False)
        graph.producer_version = "2.0"
        for node in graph.graph.node:
            node.name = f"new_{node.name}"
        path.write_bytes(graph.SerializeToString())
    (folder / PARITY).write_text("{}")
    sign(folder, [path.name for path in folder.glob("*.onnx")] + [PARITY])
    manifest = read_manifest(folder)
    manifest.name = "new"
    manifest.versions["onnx"] = "2.0"
    manifest.largest_magnitude.value *= 1 + 1e-7
    manifest.residual_norm_ratio *= 1 + 1e-7
    write_manifest(folder, manifest)
    generator = np.random.default_rng(0)

    def round_differently(arrays: dict[str, Any]) -> None:
        for name in ("hidden", "pooled"):
            arrays[name] *= 1 + 1e-7 * generator.standard_normal(arrays[name].shape, np.float32)

    change_golden(folder, round_differently)
    assert Bundle.open(folder).digest != Bundle.open(text_bundle).digest
    assert digest(folder) == digest(text_bundle)


def test_a_lower_limit_of_tokens_keeps_the_digest_of_results(text_bundle: Path) -> None:
    assert digest(text_bundle, max_tokens=8) == digest(text_bundle)


def test_each_precision_has_a_digest_of_results(text_bundle: Path) -> None:
    assert digest(text_bundle, PRECISION_INT8) != digest(text_bundle)


def add_prompt(manifest: Manifest) -> None:
    manifest.prompts.add(name="query", text="query: ", tokens=2)


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: setattr(manifest, "normalized", not manifest.normalized),
        lambda manifest: setattr(manifest, "max_text_tokens", 16),
        lambda manifest: setattr(manifest.image, "patch_size", 4),
        lambda manifest: manifest.head.labels.extend(["no", "yes"]),
        add_prompt,
    ],
    ids=["normalized", "max_text_tokens", "image", "head", "prompt"],
)
def test_a_deciding_field_changes_the_digest_of_results(text_bundle: Path, change: Callable[[Manifest], None]) -> None:
    manifest = read_manifest(text_bundle)
    before = deciding_fields(manifest)
    change(manifest)
    assert deciding_fields(manifest) != before


@pytest.mark.parametrize("name", [WEIGHTS, TOKENIZER])
def test_other_weights_or_another_tokenizer_change_the_digest_of_results(
    text_bundle: Path, tmp_path: Path, name: str
) -> None:
    folder = copy(text_bundle, tmp_path)
    path = folder / name
    path.write_bytes(path.read_bytes() + b" ")
    sign(folder, [name])
    assert digest(folder) != digest(text_bundle)


@pytest.mark.exhaustive
def test_another_computation_with_the_same_weights_changes_the_digest_of_results(
    text_checkpoint: Path, text_bundle: Path, tmp_path: Path
) -> None:
    """An encoder whose activation is another one: only the graphs and PyTorch's answers differ."""
    from headwaiter_export.cli import main

    checkpoint, folder = tmp_path / "checkpoint", tmp_path / "relu"
    shutil.copytree(text_checkpoint, checkpoint)
    config = checkpoint / "config.json"
    text = config.read_text()
    assert '"hidden_act": "gelu"' in text
    config.write_text(text.replace('"hidden_act": "gelu"', '"hidden_act": "relu"'))
    flags = ["--precision", "fp32", "--graphs", "packed-cpu"]
    assert main(["checkpoint", str(checkpoint), "-o", str(folder), "--name", "tiny-text", *flags]) == 0
    assert (folder / WEIGHTS).read_bytes() == (text_bundle / WEIGHTS).read_bytes()
    assert digest(folder) != digest(text_bundle)


def test_the_digest_of_results_stays_the_same_in_later_versions() -> None:
    """Stored vectors have this digest, so a change of its definition would make them incomparable."""
    vectors = np.array([[1, 0], [1, 1], [-1, 0]], np.float32)
    answers = summary([vectors], [np.array([2.0], np.float32), np.array([-1.0], np.float32)])
    assert answers == "[[0.71, -0.71], [1.0, -0.5]]"
    # Vectors of tokens beside a pooled vector.
    assert summary([vectors, -vectors], None) == "[[0.71, -0.71], [0.71, -0.71]]"
    assert results_digest(PRECISION_FP32, "ab", "cd", "{}", answers) == (
        hashlib.sha256(b'["PRECISION_FP32", "ab", "cd", "{}", "[[0.71, -0.71], [1.0, -0.5]]"]').hexdigest()
    )
