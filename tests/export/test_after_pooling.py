"""The modules of a checkpoint after its pooling give the vectors of sentence-transformers, or are refused by name."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from headwaiter_export.checkpoints.reader import read_checkpoint
from headwaiter_export.config.choices import Pooling
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_export.encoder.reference import run_in_pytorch
from headwaiter_export.graphs.float16 import to_float16
from headwaiter_export.graphs.packed_cpu import PackedCpu
from headwaiter_export.graphs.ranges import ActivationRanges
from headwaiter_export.graphs.tracing import write_graph
from headwaiter_server.runtime.graph import GraphOutputs
from tests.support.checkpoints import randomize, save_sentence_transformer, write_json
from tests.support.export.helpers import (
    assert_checkpoint_refused,
    assert_close_to_scale,
    edit_json,
    oracle_of,
    random_encoder,
    random_sequences,
    run_graph,
    save_dense,
    token_ids,
)
from tests.support.oracle import Array, unit
from tests.support.tiers import exhaustive

TEXTS = ["the bread is fresh", "two tables for rain, please", "a", "Rain falls on stones — ΑΒΓ 雨"]
TANH = "torch.nn.modules.activation.Tanh"
WIDTH = 32


@pytest.fixture
def dense_folder(folder: Path) -> Path:
    """A sentence-transformers folder with cls pooling and a Dense module of 32 to 12 values with tanh."""
    save_sentence_transformer(folder, modules=("Transformer", "Pooling", "Dense", "Normalize"))
    write_json(
        folder / "1_Pooling" / "config.json", {"word_embedding_dimension": WIDTH, "pooling_mode_cls_token": True}
    )
    save_dense(folder / "2_Dense", 12, bias=True, activation_function=TANH)
    return folder


def encode(encoder: Encoder, sequences: list[Array]) -> Array:
    """Return the pooled vectors of an encoder, run in PyTorch."""
    outputs: list[GraphOutputs] = run_in_pytorch(encoder, sequences)
    return np.concatenate([each.pooled for each in outputs if each.pooled is not None])


def sentence_transformer_modules(kind: str) -> list[Any]:
    """Return the modules after the transformer of a checkpoint of this kind, with random weights."""
    st: Any = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    identity = torch.nn.Identity()
    torch.manual_seed(1)
    modules: dict[str, Callable[[], list[Any]]] = {
        "LaBSE": lambda: [st.Pooling(WIDTH, "cls"), st.Dense(WIDTH, WIDTH), st.Normalize()],
        "EmbeddingGemma": lambda: [
            st.Pooling(WIDTH, "mean"),
            st.Dense(WIDTH, 96, bias=False, activation_function=identity),
            st.Dense(96, 20, bias=False, activation_function=identity),
            st.Normalize(),
        ],
        "two poolings": lambda: [st.Pooling(WIDTH, ("weightedmean", "cls")), st.Normalize()],
        "SGPT": lambda: [st.Pooling(WIDTH, "weightedmean")],
        "LayerNorm": lambda: [st.Pooling(WIDTH, "lasttoken"), st.LayerNorm(WIDTH), st.Normalize()],
        "Dropout": lambda: [st.Pooling(WIDTH, "cls"), st.Dropout(0.3), st.Dense(WIDTH, 12), st.Dropout(0.5)],
        "mixed": lambda: [
            st.Pooling(WIDTH, "mean_sqrt_len_tokens"),
            st.Normalize(),
            st.Dense(WIDTH, 24, activation_function=torch.nn.GELU()),
            st.LayerNorm(24),
            st.Dense(24, 9, activation_function=torch.nn.SiLU()),
        ],
    }
    chosen = modules[kind]()
    for module in chosen:
        randomize(module)
    return chosen


@pytest.mark.parametrize("safetensors", [True, False], ids=["safetensors", "bin"])
@pytest.mark.parametrize("kind", ["LaBSE", "EmbeddingGemma", "two poolings", "SGPT", "LayerNorm", "Dropout", "mixed"])
def test_a_chain_of_modules_equals_sentence_transformers(
    kind: str, safetensors: bool, folder: Path, tmp_path: Path
) -> None:
    st = pytest.importorskip("sentence_transformers")
    transformer = st.SentenceTransformer(str(folder), device="cpu")[0]
    reference = st.SentenceTransformer(modules=[transformer, *sentence_transformer_modules(kind)], device="cpu")
    reference.save(str(tmp_path / "saved"), safe_serialization=safetensors)
    loaded = read_checkpoint(tmp_path / "saved")
    config, ids = loaded.encoder.config, token_ids(loaded, TEXTS)
    assert config.pooled_width == reference.get_embedding_dimension()
    assert_close_to_scale(encode(loaded.encoder, ids), reference.encode(TEXTS).astype(np.float64))
    for dimensions in (1, config.pooled_width // 2):
        expected = reference.encode(TEXTS, truncate_dim=dimensions, normalize_embeddings=config.normalize)
        raw = encode(Encoder.with_weights(replace(config, normalize=False), loaded.encoder.state_dict()), ids)
        shortened = raw[:, :dimensions].astype(np.float64)
        assert_close_to_scale(unit(shortened) if config.normalize else shortened, expected.astype(np.float64))


@pytest.mark.parametrize(
    "settings",
    [
        {f"pooling_mode_{name}": True for name in ("lasttoken", "mean_tokens", "max_tokens", "cls_token")},
        {"pooling_mode_mean_sqrt_len_tokens": True, "pooling_mode_max_tokens": True},
        {"pooling_mode": ["lasttoken", "mean", "cls"]},
        {"pooling_mode": ["cls", "mean"], "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True},
    ],
    ids=["flags", "two flags", "list", "both"],
)
def test_several_poolings_are_concatenated_in_the_order_of_sentence_transformers(
    settings: dict[str, Any], folder: Path
) -> None:
    st = pytest.importorskip("sentence_transformers")
    save_sentence_transformer(folder, modules=("Transformer", "Pooling"))
    write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": WIDTH, **settings})
    loaded = read_checkpoint(folder)
    expected = st.SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    assert_close_to_scale(encode(loaded.encoder, token_ids(loaded, TEXTS)), expected.astype(np.float64))


@pytest.mark.parametrize("flag", [None, False, True])
@pytest.mark.parametrize("truncate_dim", [7, *exhaustive(2 * WIDTH - 1, 2 * WIDTH, 100)])
@pytest.mark.parametrize("normalizes", [False, True])
def test_a_model_that_truncates_its_vectors_equals_sentence_transformers(
    normalizes: bool, truncate_dim: int, flag: bool | None, folder: Path, tmp_path: Path
) -> None:
    st = pytest.importorskip("sentence_transformers")
    parts = st.sentence_transformer.modules
    transformer = st.SentenceTransformer(str(folder), device="cpu")[0]
    modules = [transformer, parts.Pooling(WIDTH, ("cls", "mean")), *[parts.Normalize()] * normalizes]
    st.SentenceTransformer(modules=modules, device="cpu", truncate_dim=truncate_dim).save(str(tmp_path / "saved"))
    reference = st.SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    assert reference.truncate_dim == truncate_dim
    loaded = read_checkpoint(tmp_path / "saved", normalize=flag)
    expected = reference.encode(TEXTS, normalize_embeddings=bool(flag)).astype(np.float64)
    if flag is False and normalizes:
        # The flag also leaves out the module Normalize, which comes before the truncation.
        expected = st.SentenceTransformer(modules=modules[:2], device="cpu").encode(TEXTS)[:, :truncate_dim]
    assert loaded.encoder.config.pooled_width == expected.shape[1]
    assert_close_to_scale(encode(loaded.encoder, token_ids(loaded, TEXTS)), expected.astype(np.float64))


@pytest.mark.parametrize(
    ("widths", "activations", "merged_widths"),
    [
        ((96, 20), ("identity", "identity"), [20]),
        ((96, 48, 20), ("identity", "identity", "tanh"), [20]),
        ((96, 20), ("tanh", "identity"), [96, 20]),
        # Two narrow layers have fewer weights than one wide layer.
        ((4, 40), ("identity", "identity"), [4, 40]),
    ],
)
@pytest.mark.parametrize("biases", [(False, False, False), (True, True, True), (True, False, True)])
def test_dense_modules_without_an_activation_between_them_are_merged_if_that_saves_weights(
    widths: tuple[int, ...], activations: tuple[str, ...], merged_widths: list[int], biases: tuple[bool, ...]
) -> None:
    chain = [
        {"kind": "dense", "width": width, "activation": activation, "bias": bias}
        for width, activation, bias in zip(widths, activations, biases, strict=False)
    ]
    encoder = random_encoder(vocabulary_size=50, layers=1, after_pooling=chain)
    merged = encoder.merge_dense()
    assert [module.width for module in merged.config.after_pooling] == merged_widths
    sequences = random_sequences(encoder.config, [1, 9])
    formula = oracle_of(encoder)
    expected = np.stack([formula.pooled(formula.hidden(each)) for each in sequences])
    assert_close_to_scale(encode(merged, sequences), expected)


def test_in_fp16_all_weights_are_float16_except_those_of_the_modules_after_pooling() -> None:
    encoder = random_encoder(vocabulary_size=50, layers=1, after_pooling=[{"kind": "dense", "width": 6}])
    for name, weight in to_float16(encoder).named_parameters():
        assert weight.dtype == (torch.float32 if name.startswith("after_pooling.") else torch.float16), name


@pytest.mark.exhaustive
@pytest.mark.usefixtures("runs_graphs")
def test_a_graph_in_fp16_computes_the_modules_after_pooling_in_float32(tmp_path: Path) -> None:
    encoder = random_encoder(vocabulary_size=50, layers=1, after_pooling=[{"kind": "dense", "width": 6}])
    # Neither the weights nor the vectors fit in float16.
    encoder.get_parameter("after_pooling.0.linear.weight").data *= 1e6
    ranges = ActivationRanges(encoder)
    sequences = random_sequences(encoder.config, [1, 9])
    with ranges.watch(encoder):
        run_in_pytorch(encoder, sequences, ranges.sequence)
    assert max(ranges.magnitudes.values()) < 1e4
    write_graph(to_float16(encoder), PackedCpu, tmp_path / "graph.onnx")
    pooled = run_graph(tmp_path / "graph.onnx", "cpu", sequences).pooled
    assert pooled is not None
    np.testing.assert_allclose(pooled, encode(encoder, sequences), rtol=1e-2, atol=1e-2 * np.abs(pooled).max())


def test_without_pooling_there_are_no_modules_after_it(dense_folder: Path) -> None:
    config = read_checkpoint(dense_folder, Pooling.NONE).encoder.config
    assert (config.after_pooling, config.pooled_width) == ((), WIDTH)


def test_a_dense_module_without_an_activation_function_has_tanh(dense_folder: Path) -> None:
    expected = read_checkpoint(dense_folder).encoder.config
    settings = {"in_features": WIDTH, "out_features": 12}
    write_json(dense_folder / "2_Dense" / "config.json", settings)
    assert read_checkpoint(dense_folder).encoder.config == expected


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"in_features": 16}, ["in_features 16", "32"]),
        ({"out_features": 0}, ["out_features 0", "from 1 to"]),
        ({"bias": 1}, ["bias 1", "true or false"]),
        ({"activation_function": "torch.nn.modules.activation.PReLU"}, ["PReLU", TANH]),
        ({"activation_function": "my_code.Swish"}, ["'my_code.Swish'", TANH]),
        ({"activation_function": None}, ["activation_function None", TANH]),
        ({"use_residual": True}, ["use_residual True", "False"]),
        ({"module_input_name": "token_embeddings"}, ["module_input_name 'token_embeddings'", "'sentence_embedding'"]),
        ({"module_output_name": "token_embeddings"}, ["module_output_name 'token_embeddings'"]),
        ({"scale": 2}, ["scale 2", "does not know"]),
    ],
)
def test_a_setting_of_a_dense_module_that_is_not_supported_is_named(
    changes: dict[str, Any], facts: list[str], dense_folder: Path
) -> None:
    edit_json(dense_folder / "2_Dense" / "config.json", **changes)
    (dense_folder / "model.safetensors").unlink()  # No weights are read before the refusal.
    assert_checkpoint_refused(dense_folder, "2_Dense/config.json", *facts)


@pytest.mark.parametrize(
    ("modules", "facts"),
    [
        (("Transformer", "Dense"), ["modules.json", "Transformer, Dense"]),
        (("Transformer", "Dense", "Pooling"), ["modules.json", "Transformer, Dense, Pooling"]),
        (("Transformer", "Pooling", "CNN"), ["modules.json", "CNN"]),
        (("Transformer", "Pooling", "Pooling"), ["modules.json", "Pooling, Pooling"]),
        (("Transformer", "Normalize"), ["modules.json", "Transformer, Normalize"]),
        (("StaticEmbedding",), ["modules.json", "StaticEmbedding", "without attention"]),
    ],
)
def test_an_unsupported_module_of_a_sentence_transformer_is_named(
    modules: tuple[str, ...], facts: list[str], folder: Path
) -> None:
    save_sentence_transformer(folder, modules=modules)
    assert_checkpoint_refused(folder, *facts)


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({"dimension": WIDTH}, ["dimension 32", "12"]),
        ({}, ["no field dimension"]),
        ({"dimension": 12, "eps": 1e-12}, ["eps 1e-12", "does not know"]),
    ],
)
def test_a_layer_norm_has_the_width_of_the_vectors_before_it(
    settings: dict[str, Any], facts: list[str], dense_folder: Path
) -> None:
    save_sentence_transformer(dense_folder, modules=("Transformer", "Pooling", "Dense", "LayerNorm"))
    write_json(dense_folder / "3_LayerNorm" / "config.json", settings)
    assert_checkpoint_refused(dense_folder, "3_LayerNorm/config.json", *facts)


def test_tensors_of_a_module_that_its_settings_do_not_describe_are_named(dense_folder: Path) -> None:
    edit_json(dense_folder / "2_Dense" / "config.json", bias=False)
    assert_checkpoint_refused(dense_folder, "2_Dense/linear.bias")
    edit_json(dense_folder / "2_Dense" / "config.json", bias=True, out_features=13)
    assert_checkpoint_refused(dense_folder, "2_Dense/linear.weight", "[12, 32]", "[13, 32]")
    safetensors.torch.save_file({}, dense_folder / "2_Dense" / "model.safetensors")
    assert_checkpoint_refused(dense_folder, "2_Dense/linear.weight")


@pytest.mark.parametrize(
    ("file", "changes", "fact"),
    [
        ("config_sentence_transformers.json", {"truncate_dim": 7}, "truncate_dim"),
        ("1_Pooling/config.json", {"pooling_mode": ["cls", "mean"]}, "several poolings"),
    ],
)
def test_a_pooling_that_leaves_out_prompts_is_refused_if_only_the_graphs_can_pool(
    file: str, changes: dict[str, Any], fact: str, folder: Path
) -> None:
    save_sentence_transformer(folder, modules=("Transformer", "Pooling"))
    write_json(folder / "config_sentence_transformers.json", {"prompts": {"query": "please: "}})
    write_json(folder / "1_Pooling" / "config.json", {"pooling_mode": "cls", "include_prompt": False})
    read_checkpoint(folder)
    edit_json(folder / file, **changes)
    assert_checkpoint_refused(folder, "include_prompt False", fact)


def test_a_pooling_that_leaves_out_prompts_is_refused_before_a_dense_module(dense_folder: Path) -> None:
    edit_json(dense_folder / "1_Pooling" / "config.json", include_prompt=False)
    assert_checkpoint_refused(dense_folder, "include_prompt False", "2_Dense")
    (dense_folder / "config_sentence_transformers.json").unlink()
    assert isinstance(read_checkpoint(dense_folder).encoder.config, EncoderConfig)
