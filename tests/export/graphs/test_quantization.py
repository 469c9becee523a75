"""int8 graphs are close to PyTorch in float32, isolate sequences, and keep harmful layers in float32."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from torch import nn

from headwaiter_export.checkpoints.reader import read_checkpoint
from headwaiter_export.config.choices import Pooling
from headwaiter_export.encoder.activations import ACTIVATIONS, LOWEST
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_export.encoder.reference import Reference
from headwaiter_export.graphs.int8 import QuantizedLinear, _meets_target, measure_encoder, quantize
from headwaiter_export.graphs.packed_cpu import PackedCpu
from headwaiter_proto.encoder_pb2 import PRECISION_INT8
from headwaiter_server.runtime.bundle import Bundle
from headwaiter_server.runtime.graph import open_session, session_options
from headwaiter_server.runtime.numeric_tolerances import Difference, violation
from tests.support.checkpoints import bert_hidden
from tests.support.export.family_examples import EXAMPLES, Example
from tests.support.export.helpers import (
    BATCH_LENGTHS,
    assert_others_change_no_bit,
    cosines,
    operators_of,
    random_encoder,
    random_sequences,
    run_graph,
    write_graphs,
)
from tests.support.oracle import Array

GRAPH = "packed-cpu.int8.onnx"


def encode(bundle: Path, sequences: list[Array]) -> Array:
    """Return pooled vectors."""
    pooled = run_graph(bundle / GRAPH, "cpu", sequences).pooled
    assert pooled is not None
    return pooled


def test_the_text_graph_has_a_cosine_of_at_least_0_99_to_transformers_bert(
    text_bundle: Path, text_checkpoint: Path
) -> None:
    bert = transformers.BertModel.from_pretrained(text_checkpoint).eval()
    rng = np.random.default_rng(3)
    for lengths in BATCH_LENGTHS:
        sequences = [rng.integers(0, bert.config.vocab_size, n) for n in lengths]
        pooled = encode(text_bundle, sequences)
        expected = np.stack([bert_hidden(bert, sequence).mean(0) for sequence in sequences])
        assert cosines(pooled, expected).min() >= 0.99


@pytest.mark.parametrize("content", [1e4, -1e4, 3e38, np.inf, -np.inf, np.nan, 0.0])
def test_the_content_of_other_sequences_changes_no_bit(
    content: float, feature_bundle: Path, feature_encoder: Encoder
) -> None:
    sequences = random_sequences(feature_encoder.config, (5, 31, 1, 12, 2))
    assert_others_change_no_bit(partial(run_graph, feature_bundle / GRAPH, "cpu"), sequences, content)


def test_a_sequence_has_the_same_result_alone_and_in_any_order(feature_bundle: Path, feature_encoder: Encoder) -> None:
    sequences = random_sequences(feature_encoder.config, (5, 31, 1, 12, 48, 2))
    together = encode(feature_bundle, sequences)
    alone = np.concatenate([encode(feature_bundle, [sequence]) for sequence in sequences])
    backwards = encode(feature_bundle, sequences[::-1])
    # Not 1: a value halfway between two integers may round up or down.
    assert cosines(alone, together).min() >= 0.9999
    assert cosines(backwards[::-1], together).min() >= 0.9999


def assert_layer_equals(
    layer: QuantizedLinear, x: Array, expected: Array, path: Path, vnni: bool | None = None
) -> None:
    """Compare the outputs of a layer in PyTorch and in a graph."""
    torch.onnx.export(layer, (torch.from_numpy(x),), path, dynamo=True, verbose=False)
    session = open_session(path, "cpu", session_options(1, vnni))
    (in_graph,) = session.run(None, {session.get_inputs()[0].name: x})
    for actual in (layer(torch.from_numpy(x)).detach().numpy(), in_graph):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("runs_graphs")
@pytest.mark.filterwarnings("ignore::FutureWarning")  # from the tracer
@pytest.mark.parametrize("vnni", [None, False, True], ids=["as served", "without VNNI", "with VNNI"])
def test_an_int8_layer_equals_its_formula(vnni: bool | None, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, weight = rng.standard_normal((7, 24), np.float32), rng.standard_normal((10, 24), np.float32)
    if vnni:
        # The kernels for VNNI run on any processor, but on one without VNNI they add two products in 16 bits. One
        # product fits; so this case passes on every processor if one product of each pair is zero.
        weight[:, 1::2] = 0
    x[1], x[2], bias, factors = 0.0, 1e30 * x[2], rng.standard_normal(10, np.float32), rng.uniform(0.5, 2, 24)
    linear = nn.Linear(24, 10)
    linear.load_state_dict({"weight": torch.from_numpy(weight), "bias": torch.from_numpy(bias)})
    layer = QuantizedLinear(linear, torch.from_numpy(factors.astype(np.float32))).eval()

    smoothed, rows = weight / factors, x.astype(np.float64) * factors
    weight_scales = np.abs(smoothed).max(1) / 127
    row_scales = np.maximum(np.abs(rows).max(1, keepdims=True), 1e-30) / 127
    integers = np.rint(rows / row_scales) @ np.rint(smoothed / weight_scales[:, None]).T
    expected = integers * row_scales * weight_scales + bias

    assert_layer_equals(layer, x, expected, tmp_path / "layer.onnx", vnni)
    assert np.abs(expected[0] - (x[0] @ weight.T + bias)).max() > 1e-3


@pytest.mark.usefixtures("runs_graphs")
@pytest.mark.filterwarnings("ignore::FutureWarning")  # from the tracer
def test_an_int8_layer_of_inputs_with_a_lower_bound_uses_all_256_integers(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.exponential(size=(7, 24)).astype(np.float32) - np.float32(0.17)
    weight, bias = rng.standard_normal((10, 24), np.float32), rng.standard_normal(10, np.float32)
    weight[:, 1::2] = 0  # so that kernels without VNNI are exact too
    factors = rng.uniform(0.5, 2, 24).astype(np.float32)
    linear = nn.Linear(24, 10)
    linear.load_state_dict({"weight": torch.from_numpy(weight), "bias": torch.from_numpy(bias)})
    layer = QuantizedLinear(linear, torch.from_numpy(factors), lowest=-0.17).eval()

    smoothed, rows = weight / factors, (x.astype(np.float64) + 0.17) * factors
    weight_scales, row_scales = np.abs(smoothed).max(1) / 127, rows.max(1, keepdims=True) / 255
    integers, weights = np.rint(rows / row_scales), np.rint(smoothed / weight_scales[:, None]) * weight_scales[:, None]
    assert (integers.min(), integers.max()) == (0, 255)
    expected = (integers * row_scales - 0.17 * factors) @ weights.T + bias

    assert_layer_equals(layer, x, expected, tmp_path / "layer.onnx")


def test_no_activation_is_below_its_lower_bound() -> None:
    x = torch.linspace(-20, 5, 2_000_001)
    for activation, lowest in LOWEST.items():
        assert lowest <= ACTIVATIONS[activation](x).min() <= lowest + 2e-4


@pytest.mark.exhaustive
@pytest.mark.usefixtures("runs_graphs")
@pytest.mark.parametrize("gated", [False, True])
def test_layers_that_read_the_same_rows_quantise_them_once(gated: bool, tmp_path: Path) -> None:
    encoder = random_encoder(feature_width=6, layers=1, gated=gated)
    quantized, _ = quantize(encoder, Reference.compute(encoder), random_sequences(encoder.config, (40, 48)))
    path = write_graphs(quantized, tmp_path, PackedCpu)[PackedCpu]
    assert operators_of(path)["MatMulIntegerToFloat"] == 6 + gated
    # The rows before the projections, before the output projection, and before both feed-forward layers; each is
    # quantised once after ONNX Runtime has merged equal nodes.
    options = session_options(1)
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    open_session(path, "cpu", options)
    assert operators_of(tmp_path / "optimized.onnx")["QuantizeLinear"] == 4


def test_only_a_layer_that_int8_would_ruin_stays_in_float32() -> None:
    encoder = random_encoder(feature_width=6)
    weights = encoder.state_dict()
    # The large weights of two equal units cancel each other; their scale rounds all other weights to 0 in int8.
    for name in ("layers.1.feed_forward.up.weight", "layers.1.feed_forward.up.bias"):
        weights[name][1] = weights[name][0]
    weights["layers.1.feed_forward.down.weight"][:, :2] = torch.tensor([1e4, -1e4])
    reference = Reference.compute(encoder)
    quantized, float32_layers = quantize(encoder, reference, reference.sequences)
    assert float32_layers == ["layers.1.feed_forward.down"]
    linears = [name for name, module in quantized.layers.named_modules() if isinstance(module, nn.Linear)]
    assert linears == ["1.feed_forward.down"]
    assert measure_encoder(quantized, reference).min_cosine >= 0.99


@pytest.mark.parametrize(("hidden_min_cosine", "meets"), [(0.95, True), (0.949, False)])
def test_int8_must_keep_hidden_rows_even_if_pooled_vectors_are_exact(hidden_min_cosine: float, meets: bool) -> None:
    measured = Difference(0.0, 0.0, 0.0, 0.0, min_cosine=1.0, mean_cosine=1.0, hidden_min_cosine=hidden_min_cosine)
    assert _meets_target(measured) is meets


@pytest.mark.exhaustive
@pytest.mark.usefixtures("runs_transformers")
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.label)
def test_every_family_is_close_to_float32_in_int8(example: Example, tmp_path: Path) -> None:
    example.save_in(tmp_path)
    encoder = read_checkpoint(tmp_path, Pooling.NONE).encoder
    reference = Reference.compute(encoder)
    quantized, _ = quantize(encoder, reference, reference.sequences)
    assert any(isinstance(module, QuantizedLinear) for module in quantized.modules())
    measured = measure_encoder(quantized, reference)
    assert violation(measured, PRECISION_INT8) is None


def test_a_bundle_lists_float32_layers_and_measures_neighbours_only_of_texts(
    text_export: tuple[Path, str], feature_bundle: Path
) -> None:
    text_bundle, printed = text_export
    # The line would name the layers.
    assert not any(line.startswith("int8: ") for line in printed.splitlines())
    (graph,) = (graph for graph in Bundle.open(text_bundle).manifest.graphs if graph.file == GRAPH)
    assert list(graph.float32_layers) == []
    (of_text,) = (each for each in Bundle.open(text_bundle).parity().graphs if each.graph == GRAPH)
    (of_features,) = (each for each in Bundle.open(feature_bundle).parity().graphs if each.graph == GRAPH)
    assert 0.5 < of_text.same_nearest_neighbour <= 1
    assert f"{GRAPH}: {of_text.same_nearest_neighbour:.1%} " in printed
    assert not of_features.HasField("same_nearest_neighbour")
