"""A decoder over an encoder equals the formulas, in every layout and with sequences of any lengths beside it."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwaiter_export.config.choices import DecoderInput, Mask, Pooling
from headwaiter_export.config.decoder import DecoderConfig
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.config.field_checks import ConfigError
from headwaiter_export.config.head import HeadActivation, HeadConfig, ScoreFunction
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_export.encoder.reference import Reference, concatenate, run_in_pytorch, sequence_of_parts
from headwaiter_export.graphs.attention_weights import AttentionWeightsLayout
from headwaiter_export.graphs.graph_layout import Packed
from headwaiter_export.graphs.int8 import quantize
from headwaiter_export.graphs.packed_cpu import PackedCpu
from headwaiter_export.graphs.portable import Portable
from headwaiter_export.graphs.tracing import write_graph
from headwaiter_server.runtime.attention_weights import AttentionSelection, AttentionWeightsGraph
from tests.support.export.helpers import (
    RUNTIMES,
    assert_equals_formulas,
    assert_mentions,
    assert_others_change_no_bit,
    cosines,
    formula_outputs,
    oracle_of,
    random_encoder,
    random_sequences,
    run_graph,
    write_graphs,
)
from tests.support.oracle import Array
from tests.support.tiers import exhaustive

DECODER = DecoderConfig(layers=3, d_ff=28, start_id=2)
FIRST_ROW = replace(DECODER, input=DecoderInput.START)
# A target of its own, in place of the text.
TARGET = replace(DECODER, input=DecoderInput.TARGET)
OF_FEATURES = replace(TARGET, layers=2, start_id=None)
FEATURES: dict[str, Any] = {
    "vocabulary_size": 0,
    "feature_width": 24,
    "feature_projection": False,
    "positions": "none",
    "decoder": OF_FEATURES,
}
T5: dict[str, Any] = {
    "norm": "pre",
    "final_norm": True,
    "rms_norm": True,
    "positions": "none",
    "distance_bias": True,
    "embedding_norm": False,
}
FORMS: dict[str, dict[str, Any]] = {
    # The classifier's head, as in BART.
    "BART": {
        "head": HeadConfig(
            ("no", "perhaps", "yes"), ScoreFunction.SOFTMAX, poolings=(Pooling.LAST,), activation=HeadActivation.TANH
        ),
    },
    "T5": {**T5, "gated": True},
    # The first row alone, whose logits are those of words, as in monoT5.
    "monoT5": {**T5, "decoder": FIRST_ROW, "head": HeadConfig(("score",), ScoreFunction.SIGMOID, bias=False)},
    # Learned positions, and a norm after each sum.
    "the first row of BART": {
        "decoder": FIRST_ROW,
        "head": HeadConfig(("no", "yes"), ScoreFunction.SOFTMAX, activation=HeadActivation.TANH),
        "pad_id": 3,
    },
    # Both stacks have several kinds of layers.
    "several kinds of layers": {
        "norm": "pre",
        "first_norm": False,
        "layers": 3,
        "local_layers": [1],
        "window": 4,
        "positions": "rotary",
    },
    # Learned positions, which begin again in the target.
    "a target": {"decoder": TARGET},
    "a target of T5": {**T5, "gated": True, "decoder": TARGET},
    "PyTorch's modules": {**FEATURES, "embedding_norm": False, "decoder": replace(OF_FEATURES, mask=Mask.NONE)},
    "projected features, and local layers": {
        **FEATURES,
        "feature_width": 7,
        "feature_projection": True,
        "positions": "rotary",
        "layers": 3,
        "local_layers": [1],
        "window": 4,
        "mask": "causal",
    },
    # A block with two inputs.
    "cross-attention": {
        **FEATURES,
        "embedding_norm": False,
        "norm": "none",
        "residual": False,
        "layers": 0,
        "d_ff": 0,
        "decoder": replace(OF_FEATURES, layers=1, d_ff=0, self_attention=False),
    },
    # Queries that attend to their context, with feed-forward blocks, as in Perceiver.
    "cross-attention in layers": {
        **FEATURES,
        "norm": "pre",
        "layers": 0,
        "decoder": replace(OF_FEATURES, self_attention=False),
    },
}
# 200 sequences, or pairs of a source and a target, in batches of 8.
BATCHES, BATCH, MOST = 25, 8, 48


def encoder_of(form: str) -> Encoder:
    choices = {"vocabulary_size": 50, "decoder": DECODER, **FORMS[form]}
    if choices["decoder"].input is DecoderInput.TARGET:
        choices |= {"pooling": "none", "max_tokens": 2 * MOST}
    return random_encoder(**choices)


def draw(encoder: Encoder, count: int, seed: int) -> list[Array]:
    """Draw sequences of any lengths."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, MOST + 1, (count, 2)).tolist()
    if encoder.config.takes_target:
        return [sequence_of_parts(encoder.config, source, target, rng) for source, target in lengths]
    return random_sequences(encoder.config, [length for length, _ in lengths], seed)


@pytest.mark.usefixtures("runs_graphs")
@pytest.mark.parametrize(
    ("form", "layout"),
    [
        # Tracing takes seconds, so every run traces one form in one layout, and tests/export/test_served_targets.py
        # one form with a target.
        ("BART", PackedCpu),
        *exhaustive(
            *((form, layout) for form in FORMS for layout in RUNTIMES if (form, layout) != ("BART", PackedCpu))
        ),
    ],
)
def test_graphs_equal_the_formulas_and_ignore_other_sequences(
    form: str, layout: type[Packed] | type[Portable], tmp_path: Path
) -> None:
    encoder = encoder_of(form)
    run = partial(run_graph, write_graphs(encoder, tmp_path, layout)[layout], RUNTIMES[layout])
    batches = [draw(encoder, BATCH, seed) for seed in range(BATCHES)]
    assert_equals_formulas(encoder, run, batches)
    # The column that tells a source from a target stays.
    assert_others_change_no_bit(run, batches[0], 0, kept_columns=encoder.config.takes_target)


@pytest.mark.parametrize("form", FORMS)
def test_pytorch_equals_the_formulas(form: str) -> None:
    encoder = encoder_of(form)
    assert_equals_formulas(
        encoder, lambda batch: concatenate(run_in_pytorch(encoder, batch)), [draw(encoder, 30, seed=0)]
    )


@pytest.mark.exhaustive
@pytest.mark.usefixtures("runs_graphs")
@pytest.mark.parametrize("form", ["a target", "cross-attention"])
def test_attention_weights_are_those_of_the_parts_of_a_sequence(form: str, tmp_path: Path) -> None:
    encoder = encoder_of(form)
    write_graph(encoder, AttentionWeightsLayout, tmp_path / "attend.onnx")
    graph, oracle = AttentionWeightsGraph.open(tmp_path / "attend.onnx"), oracle_of(encoder)
    config, n, m = encoder.config, 9, 5
    sequence = sequence_of_parts(config, n, m, np.random.default_rng(3))
    actual = graph.run(sequence, AttentionSelection(range(config.attention_layers), range(3), query=n + 2))
    source, target = slice(0, n), slice(n, n + m)
    blocks = [(source, source)] * config.layers
    assert config.decoder is not None
    for _ in range(config.decoder.layers):
        blocks += [*([(target, target)] if config.decoder.self_attention else []), (target, source)]
    expected = oracle.attention(sequence)
    assert len(expected) == len(blocks) == len(actual.weights)
    assert actual.context is not None
    for weights, context, (queries, keys), (block, contexts) in zip(
        actual.weights, actual.context, blocks, expected, strict=True
    ):
        whole = np.zeros((3, n + m, n + m))
        whole[:, queries, keys] = block
        np.testing.assert_allclose(weights, whole, rtol=0, atol=1e-6)
        np.testing.assert_allclose(context, contexts[:, 2] if queries is target else 0, rtol=0, atol=1e-5)


@pytest.mark.parametrize("form", ["BART", "monoT5", "a target"])
def test_int8_quantises_the_layers_of_a_decoder_too(form: str) -> None:
    encoder = encoder_of(form)
    sequences = draw(encoder, 20, seed=1)
    quantized, float32_layers = quantize(encoder, Reference.compute(encoder), sequences)
    names = {name for name, module in quantized.named_modules() if type(module).__name__ == "QuantizedLinear"}
    attention = ("query", "key", "value", "output")
    linears = {f"{part}.{name}" for part in ("attention", "cross_attention") for name in attention}
    linears |= {"feed_forward.up", "feed_forward.down"}
    expected = {f"decoder.layers.{layer}.{name}" for layer in range(DECODER.layers) for name in linears}
    assert expected <= names | set(float32_layers)
    assert len(names) > len(float32_layers)
    oracle, outputs = oracle_of(encoder), concatenate(run_in_pytorch(quantized, sequences))
    exact = formula_outputs(oracle, encoder.config, [oracle.hidden(each) for each in sequences])
    assert outputs.hidden is not None
    assert exact.hidden is not None
    assert cosines(outputs.hidden, exact.hidden).min() >= 0.99
    if outputs.logits is not None and exact.logits is not None:
        given, wanted = (np.concatenate(each).ravel() for each in (outputs.logits, exact.logits))
        assert np.corrcoef(given, wanted)[0, 1] >= 0.99


def test_int8_gives_layers_that_read_the_same_rows_the_same_factors_and_no_others() -> None:
    encoder = encoder_of("a target")
    sequences = draw(encoder, 20, seed=2)
    quantized, float32_layers = quantize(encoder, Reference.compute(encoder), sequences)
    assert not float32_layers

    def factors(name: str) -> list[float]:
        listed: list[float] = quantized.get_parameter(f"decoder.layers.0.{name}.factors").tolist()
        return listed

    assert factors("attention.query") == factors("attention.key") == factors("attention.value")
    assert factors("cross_attention.key") == factors("cross_attention.value") != factors("cross_attention.query")


SIZES = {"vocabulary_size": 50, "d_model": 24, "heads": 3, "layers": 2, "d_ff": 40, "max_tokens": 48}


@pytest.mark.parametrize(
    ("decoder", "choices", "facts"),
    [
        ({"layers": 0}, {}, ["decoder.layers is 0"]),
        ({"d_ff": True}, {}, ["decoder.d_ff is True"]),
        ({"start_id": 50}, {}, ["decoder.start_id is 50", "token id"]),
        ({"input": DecoderInput.START}, {}, ["decoder.input is start", "head"]),
        ({}, {"vocabulary_size": 0, "feature_width": 6}, ["decoder.start_id is 2"]),
        ({}, {"experts": 2}, ["experts"]),
        ({}, {"output_projection": False, "value_dim": 5, "residual": False, "layers": 1}, ["output projection"]),
    ],
)
def test_a_decoder_that_cannot_be_computed_is_refused(
    decoder: dict[str, Any], choices: dict[str, Any], facts: list[str]
) -> None:
    with pytest.raises(ConfigError) as refused:
        EncoderConfig(**{**SIZES, **choices, "decoder": DecoderConfig(**{**vars(DECODER), **decoder})})
    assert_mentions(refused.value, *facts)


OBJECT = {"layers": 3, "d_ff": 28, "start_id": 2}


@pytest.mark.parametrize(
    ("choices", "facts"),
    [
        ({"pooling": "mean"}, ["pooling", "none"]),
        ({"token_types": 2}, ["token_types is 2", "0"]),
        ({"fixed_length": True}, ["fixed_length is True"]),
        ({"max_tokens": 1}, ["max_tokens is 1", "2", "target"]),
        ({"mask": "self_excluding"}, ["mask is self_excluding"]),
        ({"layers": 0, "decoder": None}, ["layers is 0", "from 1"]),
        ({"decoder": {"layers": 1}}, ["decoder.d_ff is missing"]),
        ({"decoder": {"layers": 1, "d_ff": 8}}, ["decoder.start_id is None", "token id"]),
        ({"decoder": {**OBJECT, "start_id": 50}}, ["decoder.start_id is 50"]),
        ({"decoder": {**OBJECT, "d_ff": 0}}, ["decoder.d_ff is 0"]),
        ({"decoder": {**OBJECT, "mask": "windowed"}}, ["decoder.mask is 'windowed'", "causal"]),
        ({"decoder": {**OBJECT, "input": "text"}}, ["decoder.input is text"]),
        ({"decoder": {**OBJECT, "self_attention": 1}}, ["decoder.self_attention is 1"]),
        ({"decoder": 5}, ["decoder is 5", "object"]),
    ],
)
def test_fields_that_do_not_fit_a_target_are_refused(choices: dict[str, Any], facts: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        EncoderConfig.from_dict({**SIZES, "pooling": "none", "decoder": OBJECT, **choices})
    assert_mentions(refused.value, *facts)
