"""A bundle is written completely or not at all, describes itself, and stores a weight once for each precision."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import transformers

from headwaiter_export.bundle.atomic_folder import BundleError
from headwaiter_export.bundle.export import export_bundle
from headwaiter_export.encoder import score_terms
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_export.graphs.packed_cpu import PackedCpu
from headwaiter_export.graphs.tracing import WeightsFile, trace
from headwaiter_proto.encoder_pb2 import POOLING_MEAN, PRECISION_FP32
from headwaiter_server.runtime.bundle import GOLDEN, Bundle
from headwaiter_server.runtime.errors import ToleranceExceeded
from headwaiter_server.runtime.model import open_model
from tests.support.checkpoints import bert_hidden
from tests.support.export.helpers import assert_close, assert_mentions, random_encoder
from tests.support.oracle import unit
from tests.support.server.bundles import sign


def test_the_server_opens_an_exported_bundle(text_bundle: Path) -> None:
    manifest = Bundle.open(text_bundle).manifest
    assert (manifest.name, manifest.max_tokens, manifest.max_text_tokens) == ("tiny-text", 64, 32)
    assert (manifest.width, manifest.layers, manifest.heads) == (32, 2, 4)
    assert (manifest.pooling, manifest.normalized) == (POOLING_MEAN, True)
    assert set(manifest.versions) == {"torch", "onnx", "onnxruntime", "headwaiter"}
    assert manifest.schema_version == 1


def test_a_feature_bundle_accepts_no_texts(feature_bundle: Path) -> None:
    manifest = Bundle.open(feature_bundle).manifest
    assert (manifest.feature_width, manifest.vocabulary_size, manifest.max_text_tokens) == (6, 0, 0)
    assert not (feature_bundle / "tokenizer.json").exists()


@pytest.mark.exhaustive
@pytest.mark.usefixtures("runs_graphs", "packed_cpu_alone")
def test_readers_that_would_ignore_the_types_of_tokens_refuse_the_schema_version(tmp_path: Path) -> None:
    encoder = random_encoder(layers=1, max_tokens=8, vocabulary_size=50, token_types=2)
    export_bundle(encoder, None, tmp_path / "bundle", "tiny")
    assert Bundle.open(tmp_path / "bundle").manifest.schema_version == 2


@pytest.mark.exhaustive
@pytest.mark.usefixtures("runs_graphs", "packed_cpu_alone")
@pytest.mark.parametrize("prefix_rows", [1, 2])
def test_the_manifest_says_what_takes_more_memory_and_how_many_rows_are_zeros(prefix_rows: int, tmp_path: Path) -> None:
    choices: dict[str, Any] = {"feature_width": 6, "gated": True, "d_ff": 40, "prefix_rows": prefix_rows}
    choices["distance_keys"] = prefix_rows > 1
    export_bundle(random_encoder(layers=1, max_tokens=8, **choices), None, tmp_path / "bundle", "tiny")
    manifest = Bundle.open(tmp_path / "bundle").manifest
    assert (manifest.gated_width, manifest.distance_products) == (40, prefix_rows > 1)
    assert (manifest.class_row, manifest.prefix_rows) == (True, prefix_rows if prefix_rows > 1 else 0)
    # A graph that is left out is not in the manifest.
    assert [graph.file for graph in manifest.graphs] == ["packed-cpu.fp32.onnx"]
    assert not manifest.HasField("attend")


def test_parity_contains_the_differences_of_the_graphs_that_ran(text_bundle: Path) -> None:
    graphs = {graph.graph: graph for graph in Bundle.open(text_bundle).parity().graphs}
    assert graphs.keys() >= {"packed-cpu.fp32.onnx", "portable.fp32.onnx"}
    for graph in graphs.values():
        if graph.precision == PRECISION_FP32:
            assert 0 < graph.pooled_max_abs <= 1e-5
            assert 0 < graph.hidden_max_abs <= 1e-4


def test_golden_outputs_equal_transformers(text_bundle: Path, text_checkpoint: Path) -> None:
    model = transformers.BertModel.from_pretrained(text_checkpoint).eval()
    golden = Bundle.open(text_bundle).golden()
    hidden = [bert_hidden(model, sequence.copy()) for sequence in golden.sequences]
    lengths = [len(sequence) for sequence in golden.sequences]
    assert len(lengths) == 32
    assert {1, 2, 3, 64} <= set(lengths)
    assert_close(golden.outputs.hidden, np.concatenate(hidden))
    assert_close(golden.outputs.pooled, np.stack([unit(rows.mean(0)) for rows in hidden]))


@pytest.mark.exhaustive
def test_a_self_excluding_bundle_has_golden_inputs_of_two_tokens_and_more(self_excluding_bundle: Path) -> None:
    bundle = Bundle.open(self_excluding_bundle)
    assert bundle.manifest.min_tokens == 2
    assert sorted({len(sequence) for sequence in bundle.golden().sequences})[:3] == [2, 3, 4]


def test_weights_are_stored_once_for_each_precision(text_bundle: Path, text_checkpoint: Path) -> None:
    model = transformers.BertModel.from_pretrained(text_checkpoint)
    values = sum(each.numel() for name, each in model.named_parameters() if not name.startswith("pooler"))
    # Short vectors are stored in the graphs, and weights start at multiples of 64 bytes.
    assert 0.9 < (text_bundle / "weights.fp32.bin").stat().st_size / (4 * values) < 1.05
    assert 0.9 < (text_bundle / "weights.fp16.bin").stat().st_size / (2 * values) < 1.05


def test_a_bundle_contains_no_paths_of_the_exporting_machine(text_bundle: Path) -> None:
    for path in text_bundle.glob("*.onnx"):
        model = onnx.load(path, load_external_data=False)
        assert not any(node.metadata_props or node.doc_string for node in model.graph.node)
        assert str(Path(transformers.__file__).parents[1]).encode() not in path.read_bytes()


def test_the_same_model_gives_the_same_bytes(feature_encoder: Encoder, feature_bundle: Path, tmp_path: Path) -> None:
    # In a bundle, this graph is the first that stores its weights in this file.
    with WeightsFile(tmp_path / "weights.fp32.bin") as weights:
        weights.write_graph(trace(feature_encoder, PackedCpu), tmp_path / "packed-cpu.fp32.onnx")
    for path in tmp_path.iterdir():
        content = path.read_bytes()
        assert content == (feature_bundle / path.name).read_bytes()[: len(content)] != b""
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.usefixtures("runs_graphs", "packed_cpu_alone")
def test_outputs_out_of_tolerance_are_refused_even_if_they_are_tiny(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare: dict[str, Any] = {"layers": 1, "d_ff": 0, "residual": False, "norm": "none", "embedding_norm": False}
    encoder = random_encoder(feature_width=6, **bare)
    for parameter in encoder.get_submodule("layers.0.attention.output").parameters():
        parameter.data *= 1e-7
    right = tmp_path / "right"
    export_bundle(encoder, None, right, "right")
    assert open_model(right, "cpu", "fp32", 1).self_check.hidden_max_abs < 1e-9
    with np.load(right / GOLDEN) as stored:
        arrays = dict(stored)
    for output in ("pooled", "hidden"):
        assert np.abs(arrays[output]).max() < 1e-5
        arrays[output] *= -1
    np.savez(right / GOLDEN, **arrays)
    sign(right, [GOLDEN])
    with pytest.raises(ToleranceExceeded):
        open_model(right, "cpu", "fp32", 1)
    # If padding is not masked, the results of sequences of different lengths are wrong.
    monkeypatch.setattr(score_terms, "MASKED_SCORE", 0.0)
    with pytest.raises(BundleError) as error:
        export_bundle(encoder, None, tmp_path / "wrong", "wrong")
    assert_mentions(error.value, "packed-cpu.fp32.onnx", "pooled", "0.001")
    assert [path.name for path in tmp_path.iterdir()] == ["right"]


@pytest.mark.usefixtures("runs_graphs", "packed_cpu_alone")
def test_attention_that_saturates_is_named_if_a_graph_is_out_of_tolerance(tmp_path: Path) -> None:
    encoder = random_encoder(layers=2, max_tokens=64, vocabulary_size=50)
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            if name.endswith(("attention.query.weight", "attention.key.weight")):
                parameter.mul_(64)
    with pytest.raises(BundleError) as error:
        export_bundle(encoder, None, tmp_path / "bundle", "tiny")
    assert_mentions(error.value, "packed-cpu.fp32.onnx", "out of tolerance", ".attention.scores", "float32")


def test_a_bundle_never_overwrites_files(feature_encoder: Encoder, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("precious")
    for taken in (tmp_path, tmp_path / "kept"):
        with pytest.raises(BundleError) as error:
            export_bundle(feature_encoder, None, taken, "tiny")
        assert_mentions(error.value, str(taken))
    assert [path.read_text() for path in tmp_path.iterdir()] == ["precious"]
