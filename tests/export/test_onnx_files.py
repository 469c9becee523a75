"""A bundle of an ONNX file gives what ONNX Runtime alone gives for the file, one sequence at a time."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import safetensors.torch
import torch
from onnx import TensorProto, helper, numpy_helper, parser
from onnxruntime.quantization import quantize_dynamic
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from onnxruntime.transformers.float16 import convert_float_to_float16

from headwaiter_client import patches
from headwaiter_export.checkpoints.json_files import CheckpointError
from headwaiter_export.checkpoints.onnx_paths import files_of
from headwaiter_export.cli import main
from headwaiter_export.graphs.onnx_file import OnnxFile
from headwaiter_proto.encoder_pb2 import (
    ISOLATION_MIXED,
    ISOLATION_ONE_SEQUENCE,
    POOLING_CLS,
    POOLING_LAST,
    POOLING_MAX,
    POOLING_MEAN,
    POOLING_OWN,
    PRECISION_FP16,
    PRECISION_FP32,
    PRECISION_INT8,
    REFERENCE_SOURCE_ONNX_FILE,
    REFERENCE_SOURCE_ONNX_FILE_AND_PYTORCH,
    Isolation,
    Pooling,
)
from headwaiter_proto.rules.pooling import POOLINGS, pool
from headwaiter_server.runtime.bundle import Bundle
from headwaiter_server.runtime.graph import open_session, session_options
from headwaiter_server.runtime.model import Model, open_model
from headwaiter_server.runtime.packing import pack
from tests.export.conftest import Refused
from tests.support.checkpoints import (
    VOCABULARY,
    save_bert,
    save_sentence_transformer,
    save_tokenizer,
    save_vit,
    write_json,
)
from tests.support.export.helpers import assert_close_to_scale, save_dense
from tests.support.export.onnx_files import (
    MAX_TOKENS,
    TEXT_INPUTS,
    FeatureRows,
    OneSequenceRows,
    Pooled,
    SimilarRows,
    run_file,
    save_branches,
    save_classifier,
    save_files,
    with_weights_beside,
    write_onnx,
)
from tests.support.oracle import Array
from tests.support.tiers import exhaustive

pytestmark = pytest.mark.usefixtures("runs_graphs", "runs_transformers")

LENGTHS = (9, 2, MAX_TOKENS, 9, 5, 1)


def drawn(lengths: tuple[int, ...] = LENGTHS) -> list[Array]:
    rng = np.random.default_rng(3)
    return [rng.integers(0, len(VOCABULARY), n) for n in lengths]


def rows_of(model: Model, sequence: Array) -> Array:
    """Return the hidden rows of a sequence alone."""
    hidden = model.graph.run(pack([sequence]), hidden=True).hidden
    assert hidden is not None
    return hidden


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


@pytest.mark.parametrize("pooling", [*POOLINGS])
def test_each_pooling_beside_the_file_is_that_of_a_server(pooling: Pooling, tmp_path: Path) -> None:
    write_onnx(save_bert(tmp_path), tmp_path / "model.onnx", opset=17 if pooling == POOLING_MAX else 18)
    served = exported(tmp_path, "--pooling", Pooling.Name(pooling).removeprefix("POOLING_").lower())
    assert served.bundle.manifest.pooling == pooling
    batch = pack(drawn())
    outputs = served.graph.run(batch, hidden=True)
    assert outputs.hidden is not None
    assert outputs.pooled is not None
    for rows, vector in zip(batch.split(outputs.hidden), outputs.pooled, strict=True):
        assert_close_to_scale(vector, pool(rows, pooling), 1e-6)


@pytest.mark.parametrize(("activation", "opset"), [("GELU", 11), *exhaustive(("Tanh", 18))])
def test_modules_after_the_pooling_follow_the_file(activation: str, opset: int, tmp_path: Path) -> None:
    file = save_files(tmp_path, opset)
    save_sentence_transformer(tmp_path, modules=("Transformer", "Pooling", "Dense", "LayerNorm"))
    write_json(tmp_path / "3_LayerNorm" / "config.json", {"dimension": 20})
    norm = {"norm.weight": torch.randn(20), "norm.bias": torch.randn(20)}
    safetensors.torch.save_file(norm, tmp_path / "3_LayerNorm" / "model.safetensors")
    tensors = save_dense(
        tmp_path / "2_Dense", 20, bias=True, activation_function=f"torch.nn.modules.activation.{activation}"
    )
    served, sequences = exported(tmp_path), drawn()
    manifest = served.bundle.manifest
    # Readers that know no modules after the pooling would return vectors without the modules.
    assert (manifest.width, manifest.fixed_pooling, manifest.schema_version) == (20, True, 2)
    pooled = served.graph.run(pack(sequences), hidden=True).pooled
    assert pooled is not None
    for vector, ids in zip(pooled, sequences, strict=True):
        mean = torch.from_numpy(run_file(file, "last_hidden_state", ids)).double().mean(0)
        dense = tensors["linear.weight"].double() @ mean + tensors["linear.bias"].double()
        active = getattr(torch.nn, activation)()(dense)
        scaled = (active - active.mean()) / (active.var(correction=0) + 1e-5).sqrt()
        expected = scaled * norm["norm.weight"].double() + norm["norm.bias"].double()
        assert_close_to_scale(vector, expected.numpy(), 1e-5)


@pytest.mark.parametrize(
    ("vectors", "pooling", "normalized"),
    [
        ({}, POOLING_MEAN, True),
        ({"pooling": "max", "unit": False}, POOLING_MAX, False),
        ({"pooling": "cls"}, POOLING_CLS, True),
        ({"dense": True}, POOLING_OWN, True),
    ],
    ids=str,
)
def test_a_pooling_inside_the_file_is_found(
    vectors: dict[str, Any], pooling: Pooling, normalized: bool, tmp_path: Path
) -> None:
    save_tokenizer(tmp_path)
    module = Pooled(save_bert(tmp_path), **vectors)
    file = write_onnx(module, tmp_path / "model.onnx", outputs=("token_embeddings", "sentence_embedding"))
    model = exported(file)
    manifest, sequences = model.bundle.manifest, drawn()
    assert (manifest.pooling, manifest.normalized) == (pooling, normalized)
    pooled = model.graph.run(pack(sequences), hidden=False).pooled
    assert pooled is not None
    for vector, ids in zip(pooled, sequences, strict=True):
        length = np.linalg.norm(vector) if normalized else 1
        assert_close_to_scale(vector / length, run_file(file, "sentence_embedding", ids), 1e-6)


def test_a_pooling_is_found_among_rows_that_hardly_differ(tmp_path: Path) -> None:
    outputs = ("token_embeddings", "sentence_embedding")
    file = write_onnx(SimilarRows(), tmp_path / "rows.onnx", ("features", "attention_mask"), outputs)
    assert exported(file, "--max-tokens", "30").bundle.manifest.pooling == POOLING_CLS


@pytest.mark.parametrize("modules", ["Normalize", "Dense Normalize"])
def test_rows_follow_modules_json_whatever_vector_the_file_has(modules: str, tmp_path: Path, refused: Refused) -> None:
    save_tokenizer(tmp_path)
    outputs = ("token_embeddings", "sentence_embedding")
    file = write_onnx(Pooled(save_bert(tmp_path)), tmp_path / "model.onnx", outputs=outputs)
    save_sentence_transformer(tmp_path, modules=("Transformer", "Pooling", *modules.split()))
    expected = [run_file(file, outputs[0], ids).mean(0, dtype=np.float64) for ids in drawn()]
    if "Dense" in modules:
        weight = save_dense(tmp_path / "2_Dense", 20, bias=False)["linear.weight"]
        expected = [np.tanh(weight.double().numpy() @ each) for each in expected]
    settings_file = tmp_path / "config_sentence_transformers.json"
    write_json(settings_file, {**json.loads(settings_file.read_text()), "truncate_dim": 8})
    refused(["onnx", file, "--outputs", "pooled=sentence_embedding"], "truncate_dim")
    served = exported(file)
    # sentence-transformers scales to unit length before it shortens vectors, and not again.
    assert not served.bundle.manifest.normalized
    pooled = served.graph.run(pack(drawn()), hidden=True).pooled
    assert pooled is not None
    for vector, each in zip(pooled, expected, strict=True):
        assert_close_to_scale(vector, (each / np.linalg.norm(each))[:8], 1e-6)


@pytest.mark.parametrize(
    ("per_token", "inputs"), [(False, TEXT_INPUTS), (True, TEXT_INPUTS), *exhaustive((False, TEXT_INPUTS[:2]))]
)
def test_a_file_of_logits_is_served_with_its_labels(per_token: bool, inputs: tuple[str, ...], tmp_path: Path) -> None:
    kind = "BertForTokenClassification" if per_token else "BertForSequenceClassification"
    model = save_classifier(tmp_path, kind)
    save_tokenizer(tmp_path)
    file = write_onnx(model, tmp_path / "model.onnx", inputs, ("logits",))
    served = exported(file)
    manifest = served.bundle.manifest
    assert [*manifest.head.labels] == ["calm", "glad", "sad"]
    assert (manifest.head.per_token, manifest.without_rows, manifest.takes_pairs) == (per_token, True, True)
    types = manifest.token_types
    assert (types > 0) == ("token_type_ids" in inputs)
    sequences = [np.stack([ids, ids % 2], axis=1) if types else ids for ids in drawn()]
    logits = served.graph.run(pack(sequences), hidden=False).logits
    assert logits is not None
    for each, rows in zip(sequences, logits, strict=True):
        expected = run_file(file, "logits", *each.T) if types else run_file(file, "logits", each)
        assert_close_to_scale(rows, np.atleast_2d(expected), 1e-6)


def test_int8_runs_one_sequence_at_a_time_and_equals_the_file_in_every_bit(tmp_path: Path) -> None:
    file = save_files(tmp_path)
    quantize_dynamic(file, tmp_path / "onnx" / "model_qint8.onnx")
    served = exported(tmp_path / "onnx" / "model_qint8.onnx")
    assert served.precision == PRECISION_INT8
    assert served.bundle.manifest.padding.isolation == ISOLATION_ONE_SEQUENCE
    for ids in drawn():
        expected = run_file(tmp_path / "onnx" / "model_qint8.onnx", "last_hidden_state", ids)
        np.testing.assert_array_equal(rows_of(served, ids), expected)


def test_quantised_weights_are_named_and_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, quantized = save_files(tmp_path), tmp_path / "onnx" / "model_q4.onnx"
    quantizer = MatMulNBitsQuantizer(onnx.load(file), block_size=16)
    quantizer.process()
    quantizer.model.save_model_to_file(str(quantized))
    served = exported(quantized)
    assert served.precision == PRECISION_INT8
    assert "weights of 4 bits" in served.bundle.manifest.padding.reason
    assert "keep their nearest neighbour" in capsys.readouterr().out
    (ids,) = drawn((9,))
    np.testing.assert_array_equal(rows_of(served, ids), run_file(quantized, "last_hidden_state", ids))


@pytest.mark.parametrize(("kind", "bits"), [(TensorProto.INT8, 8), (TensorProto.UINT4, 4)])
def test_weights_that_are_only_stored_in_fewer_bits_are_named(kind: int, bits: int, tmp_path: Path) -> None:
    stored = helper.make_tensor("weight_stored", kind, [6, 16], np.arange(96) % 7)
    scale = helper.make_tensor("scale", TensorProto.FLOAT, [], [0.1])
    nodes = [
        helper.make_node("DequantizeLinear", ["weight_stored", "scale"], ["weight"]),
        helper.make_node("MatMul", ["features", "weight"], ["token_embeddings"]),
    ]
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "sequence", width])
        for name, width in (("features", 6), ("token_embeddings", 16))
    ]
    graph = helper.make_graph(nodes, "rows", values[:1], values[1:], [stored, scale])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), tmp_path / "rows.onnx"
    )
    file = OnnxFile.open(tmp_path / "rows.onnx")
    assert (file.precision, file.weight_bits) == (PRECISION_INT8, bits)


def test_fp16_inside_equals_the_file_in_every_bit(tmp_path: Path) -> None:
    file = save_files(tmp_path)
    onnx.save(convert_float_to_float16(onnx.load(file), keep_io_types=True), file)
    served = exported(tmp_path)
    assert served.precision == PRECISION_FP16
    for ids in drawn():
        np.testing.assert_array_equal(rows_of(served, ids), run_file(file, "last_hidden_state", ids))


def test_a_file_in_fp16_with_transposed_products_does_not_crash_onnx_runtime(tmp_path: Path) -> None:
    # nn.MultiheadAttention in float16 gives such files.
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18]>
        rows (int64[batch, sequence] input_ids) => (float16[batch, sequence, 8] last_hidden_state) {
            embedded = Gather (table, input_ids)
            by_position = Transpose <perm = [1, 0, 2]> (embedded)
            products = MatMul (by_position, weight)
            last_hidden_state = Transpose <perm = [1, 0, 2]> (products)
        }
    """)
    rng = np.random.default_rng(0)
    table, weight = (rng.standard_normal((n, 8)).astype(np.float16) for n in (len(VOCABULARY), 8))
    model.graph.initializer.append(numpy_helper.from_array(table, "table"))
    model.graph.initializer.append(numpy_helper.from_array(weight, "weight"))
    file = tmp_path / "rows.onnx"
    onnx.save(model, file)
    served = exported(file, "--max-tokens", str(MAX_TOKENS), "--pooling", "mean")
    for ids in drawn():
        expected = table[ids].astype(np.float32) @ weight.astype(np.float32)
        assert_close_to_scale(rows_of(served, ids).astype(np.float32), expected, 2e-3)


@pytest.mark.parametrize(
    "inputs",
    [
        ("input_ids",),
        ("input_ids", "attention_mask"),
        ("input_ids", "attention_mask", "position_ids"),
        *exhaustive((("input_ids", "position_ids"),), (("attention_mask", "token_type_ids", "input_ids"),)),
    ],
    ids=str,
)
def test_a_file_may_take_any_of_the_usual_inputs_and_have_its_weights_beside_it(
    inputs: tuple[str, ...], tmp_path: Path
) -> None:
    file = write_onnx(save_bert(tmp_path), tmp_path / "model.onnx", inputs)
    with_weights_beside(file)
    served = exported(file)
    assert served.bundle.manifest.max_text_tokens == 0
    isolation = served.bundle.manifest.padding.isolation
    assert (isolation == ISOLATION_MIXED) == ("attention_mask" in inputs)
    for ids in drawn():
        assert_close_to_scale(rows_of(served, ids), run_file(file, "last_hidden_state", ids), 1e-6)


def test_weights_may_be_links_as_in_the_cache_of_hugging_face(tmp_path: Path) -> None:
    file = write_onnx(save_bert(tmp_path), tmp_path / "model.onnx", ("input_ids", "attention_mask"))
    weights = with_weights_beside(file)
    (tmp_path / "blobs").mkdir()
    weights.symlink_to(weights.rename(tmp_path / "blobs" / "0123"))
    served = exported(file)
    (ids, *_) = drawn()
    assert_close_to_scale(rows_of(served, ids), run_file(file, "last_hidden_state", ids), 1e-6)


def test_weights_of_branches_in_another_folder_come_along(tmp_path: Path) -> None:
    file = save_branches(tmp_path / "rows.onnx")
    weights = tmp_path / "weights" / "rows.bin"
    assert files_of(file) == [file, weights]
    rows = np.random.default_rng(1).standard_normal((9, 6), np.float32)
    (expected,) = open_session(file, "cpu", session_options(1)).run(None, {"features": rows[None]})
    exported(file, "--max-tokens", "30")
    file.unlink()
    weights.unlink()
    served = open_model(tmp_path / "bundle", "cpu", "auto", threads=1)
    np.testing.assert_array_equal(rows_of(served, rows), expected[0])


def test_weights_outside_the_folder_of_the_file_are_refused(tmp_path: Path) -> None:
    file = save_branches(tmp_path / "files" / "rows.onnx")
    (tmp_path / "files" / "weights").rename(tmp_path / "weights")
    model = onnx.load(file, load_external_data=False)
    for branch in model.graph.node[-1].attribute:
        branch.g.initializer[0].external_data[0].value = "../weights/rows.bin"
    onnx.save(model, file)
    with pytest.raises(CheckpointError, match=r"\.\./weights"):
        files_of(file)
    assert main(["onnx", str(file), "-o", str(tmp_path / "bundle"), "--max-tokens", "30"]) == 1


@pytest.mark.parametrize("kind", ["ViTModel", *exhaustive("ViTForImageClassification")])
def test_a_file_of_images_takes_the_patches_of_images(kind: str, tmp_path: Path) -> None:
    module = save_vit(tmp_path, kind)
    output = "last_hidden_state" if kind == "ViTModel" else "logits"
    file = write_onnx(module, tmp_path / "model.onnx", ("pixel_values",), (output,))
    write_json(tmp_path / "preprocessor_config.json", {"size": {"height": 12, "width": 12}})
    served = exported(file)
    image = served.bundle.manifest.image
    assert (image.channels, image.height, image.width, image.patch_size) == (3, 12, 12, 4)
    images = np.random.default_rng(0).standard_normal((3, 3, 12, 12), np.float32)
    batch = pack([patches(each, 4, prefix_rows=1) for each in images])
    outputs = served.graph.run(batch, hidden=True)
    rows = outputs.logits if outputs.hidden is None else batch.split(outputs.hidden)
    assert rows is not None
    session = open_session(file, "cpu", session_options(1))
    for given, each in zip(list[Array](rows), images, strict=True):
        expected = session.run([output], {"pixel_values": each[None]})[0]
        assert_close_to_scale(given, expected[0] if kind == "ViTModel" else expected, 1e-6)


@pytest.mark.parametrize(
    ("kind", "sequences", "isolation"),
    [(FeatureRows, 2, ISOLATION_MIXED), (OneSequenceRows, 1, ISOLATION_ONE_SEQUENCE)],
)
def test_a_file_of_features_takes_rows_in_batches_that_it_can_run(
    kind: type[FeatureRows], sequences: int, isolation: Isolation, tmp_path: Path
) -> None:
    module, inputs = kind(), ("features", "attention_mask")
    file = write_onnx(module, tmp_path / "rows.onnx", inputs, ("token_embeddings",), sequences=sequences)
    served = exported(file, "--max-tokens", "30")
    assert served.bundle.manifest.feature_width == 6
    assert served.bundle.manifest.padding.isolation == isolation
    rng = np.random.default_rng(0)
    drawn_rows = [rng.standard_normal((n, 6), np.float32) for n in (3, 30, 7)]
    for together in [drawn_rows] if isolation == ISOLATION_MIXED else [[each] for each in drawn_rows]:
        batch = pack(together)
        hidden = served.graph.run(batch, hidden=True).hidden
        assert hidden is not None
        for rows, each in zip(batch.split(hidden), together, strict=True):
            with torch.inference_mode():
                expected = module(torch.from_numpy(each)[None], torch.ones(1, len(each), dtype=torch.int64))[0].numpy()
            assert_close_to_scale(rows, expected, 1e-6)


def test_a_file_alone_is_described_by_flags(tmp_path: Path, refused: Refused) -> None:
    file = write_onnx(save_bert(tmp_path / "checkpoint"), tmp_path / "rows.onnx", outputs=("states",))
    refused(["onnx", file], "states")
    refused(["onnx", file, "--outputs", "hidden=states"], "--max-tokens")
    served = exported(file, "--outputs", "hidden=states", "--max-tokens", "40", "--pooling", "last", "--normalize")
    manifest = served.bundle.manifest
    assert (manifest.name, manifest.vocabulary_size, manifest.max_tokens) == ("rows", len(VOCABULARY), 40)
    assert (manifest.pooling, manifest.normalized) == (POOLING_LAST, True)


def test_files_that_a_server_cannot_run_are_refused_by_name(tmp_path: Path, refused: Refused) -> None:
    model = save_bert(tmp_path)
    fixed = write_onnx(model, tmp_path / "fixed.onnx", dynamic=False)
    custom = onnx.load(write_onnx(model, tmp_path / "custom.onnx"))
    custom.graph.node[0].domain, custom.graph.node[0].op_type = "of.mine", "Special"
    onnx.save(custom, tmp_path / "custom.onnx")
    past = onnx.load(write_onnx(model, tmp_path / "past.onnx"))
    past.graph.input.append(helper.make_tensor_value_info("past_key_values.0", onnx.TensorProto.FLOAT, ["b", 2, "n"]))
    onnx.save(past, tmp_path / "past.onnx")
    (tmp_path / "damaged.onnx").write_bytes(b"no graph")
    old = write_onnx(FeatureRows(), tmp_path / "old.onnx", ("features", "attention_mask"), ("hidden",), opset=10)
    for file, fact in (
        (old, "opset 10"),
        (fixed, "input_ids of the shape [2, 7]"),
        (tmp_path / "custom.onnx", "Special of of.mine"),
        (tmp_path / "past.onnx", "past_key_values.0"),
        (tmp_path / "damaged.onnx", "damaged.onnx"),
        (tmp_path / "missing.onnx", "missing.onnx"),
        (tmp_path, "several ONNX files"),
    ):
        refused(["onnx", file], fact)


def test_a_smaller_limit_holds_for_texts_too(tmp_path: Path) -> None:
    save_files(tmp_path)
    save_sentence_transformer(tmp_path)
    manifest = exported(tmp_path, "--max-tokens", "20").bundle.manifest
    assert (manifest.max_tokens, manifest.max_text_tokens) == (20, 20)


def command_beside_pytorch(folder: Path, precision: str = "fp32", *flags: str, **settings: Any) -> list[str]:
    """Save a file and a checkpoint of these settings, and return how to export the file."""
    file = save_files(folder / "files")
    if precision == "fp16":
        onnx.save(convert_float_to_float16(onnx.load(file), keep_io_types=True), file)
    if precision == "int8":
        quantize_dynamic(file, file)
    save_bert(folder / "checkpoint", **settings)
    save_tokenizer(folder / "checkpoint")
    return ["onnx", str(file), "--pytorch", str(folder / "checkpoint"), *flags]


@pytest.mark.parametrize("precision", ["fp32", *exhaustive("fp16", "int8")])
def test_a_file_is_compared_with_pytorch_if_its_checkpoint_is_there(precision: str, tmp_path: Path) -> None:
    # The choices hold for the checkpoint too: of different poolings, vectors would differ.
    command = command_beside_pytorch(tmp_path, precision, "--pooling", "max", "--normalize")
    assert main([*command, "-o", str(tmp_path / "bundle")]) == 0
    manifest = Bundle.open(tmp_path / "bundle").manifest
    assert manifest.reference_source == REFERENCE_SOURCE_ONNX_FILE_AND_PYTORCH
    assert manifest.pooling == POOLING_MAX


@pytest.mark.parametrize(
    ("precision", "settings", "fact"),
    [
        ("fp32", {"hidden_act": "relu"}, "PyTorch"),
        ("fp16", {"hidden_act": "relu"}, "PyTorch"),
        ("int8", {"num_hidden_layers": 1}, "on average"),
        ("int8", {"hidden_size": 16}, "hidden of width 16"),
        ("fp32", {"vocab_size": len(VOCABULARY) - 9}, f"{len(VOCABULARY) - 9}"),
    ],
    ids=str,
)
def test_a_checkpoint_of_other_results_is_noticed(
    precision: str, settings: dict[str, Any], fact: str, tmp_path: Path, refused: Refused
) -> None:
    refused(command_beside_pytorch(tmp_path, precision, **settings), fact)


def test_a_checkpoint_without_the_output_of_the_file_is_refused(tmp_path: Path, refused: Refused) -> None:
    model = save_classifier(tmp_path, "BertForSequenceClassification")
    file = write_onnx(model, tmp_path / "model.onnx", outputs=("logits",))
    save_bert(tmp_path / "checkpoint")
    save_tokenizer(tmp_path / "checkpoint")
    refused(["onnx", file, "--pytorch", tmp_path / "checkpoint"], "logits of width 3")


@pytest.mark.parametrize("inputs", [TEXT_INPUTS[:2], *exhaustive((TEXT_INPUTS,))])
def test_a_classifier_without_token_types_is_compared_with_types_of_0(inputs: tuple[str, ...], tmp_path: Path) -> None:
    model = save_classifier(tmp_path, "BertForSequenceClassification")
    save_tokenizer(tmp_path)
    file = write_onnx(model, tmp_path / "onnx" / "model.onnx", inputs, ("logits",))
    model.save_pretrained(tmp_path)
    manifest = exported(file, "--pytorch", str(tmp_path)).bundle.manifest
    assert manifest.reference_source == REFERENCE_SOURCE_ONNX_FILE_AND_PYTORCH


def test_a_broken_neighbour_costs_an_int8_file_only_the_comparison(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = save_files(tmp_path)
    quantized = tmp_path / "onnx" / "model_qint8.onnx"
    quantize_dynamic(file, quantized)
    file.write_bytes(b"no graph")
    exported(quantized)
    assert str(file) in capsys.readouterr().out
