"""An encoder of sources with a decoder of targets equals the formulas, whatever the lengths beside each other."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.config.field_checks import ConfigError
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_export.encoder.reference import Reference, concatenate, run_in_pytorch, sequence_of_parts
from headwaiter_export.graphs.attention_weights import AttentionWeightsLayout
from headwaiter_export.graphs.graph_layout import Packed
from headwaiter_export.graphs.int8 import quantize
from headwaiter_export.graphs.packed_cpu import PackedCpu
from headwaiter_export.graphs.packed_cuda import PackedCuda
from headwaiter_export.graphs.portable import Portable
from headwaiter_export.graphs.tracing import write_graph
from headwaiter_server.runtime.attention_weights import AttentionSelection, AttentionWeightsGraph
from tests.export.encoder.test_decoder import FORMS as DECODER_FORMS
from tests.support.export.helpers import (
    RUNTIMES,
    assert_close_to_scale,
    assert_others_change_no_bit,
    cosines,
    oracle_of,
    random_encoder,
    run_graph,
    write_graphs,
)
from tests.support.oracle import Array

DECODER = {"layers": 3, "d_ff": 28, "start_id": 2}
FEATURES = {"vocabulary_size": 0, "feature_width": 24, "feature_projection": False, "positions": "none"}
FORMS: dict[str, dict[str, Any]] = {
    # Learned positions, which begin again in the target.
    "token ids": {},
    "T5": DECODER_FORMS["T5"],
    "PyTorch's modules": {**FEATURES, "embedding_norm": False, "decoder": {"layers": 2, "d_ff": 28, "mask": "none"}},
    "projected features, and local layers": {
        **FEATURES,
        "feature_width": 7,
        "feature_projection": True,
        "positions": "rotary",
        "layers": 3,
        "local_layers": [1],
        "window": 4,
        "mask": "causal",
        "decoder": {"layers": 2, "d_ff": 28},
    },
    # A block with two inputs.
    "cross-attention": {
        **FEATURES,
        "embedding_norm": False,
        "norm": "none",
        "residual": False,
        "layers": 0,
        "d_ff": 0,
        "decoder": {"layers": 1, "d_ff": 0, "self_attention": False},
    },
    # Queries that attend to their context, with feed-forward blocks, as in Perceiver.
    "cross-attention in layers": {
        **FEATURES,
        "norm": "pre",
        "layers": 0,
        "decoder": {"layers": 2, "d_ff": 28, "self_attention": False},
    },
}
LAYOUTS = (PackedCpu, PackedCuda, Portable)
# 200 pairs of lengths, in batches of 8.
BATCHES, BATCH, MOST = 25, 8, 48


def encoder_of(form: str) -> Encoder:
    choices = {"vocabulary_size": 50, "pooling": "none", "decoder": DECODER, "max_tokens": 2 * MOST, **FORMS[form]}
    config = EncoderConfig.from_dict({"d_model": 24, "heads": 3, "layers": 2, "d_ff": 40, **choices})
    return random_encoder(**vars(config))


def pairs_of(encoder: Encoder, pairs: int, seed: int) -> list[Array]:
    """Draw sequences whose sources and targets have any lengths."""
    rng = np.random.default_rng(seed)
    lengths = [rng.integers(1, MOST + 1, 2).tolist() for _ in range(pairs)]
    return [sequence_of_parts(encoder.config, source, target, rng) for source, target in lengths]


# Tracing takes seconds. In every run, tests/export/test_served_targets.py traces one form.
@pytest.mark.exhaustive
@pytest.mark.usefixtures("runs_graphs")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("form", FORMS)
def test_rows_equal_the_formulas_and_ignore_other_sequences(
    form: str, layout: type[Packed] | type[Portable], tmp_path: Path
) -> None:
    encoder = encoder_of(form)
    oracle = oracle_of(encoder)
    path = write_graphs(encoder, tmp_path, layout)[layout]
    for seed in range(BATCHES):
        sequences = pairs_of(encoder, BATCH, seed)
        hidden = run_graph(path, RUNTIMES[layout], sequences).hidden
        assert hidden is not None
        assert_close_to_scale(hidden, np.concatenate([oracle.hidden(each) for each in sequences]))
    assert_others_change_no_bit(partial(run_graph, path, RUNTIMES[layout]), sequences, 0, kept_columns=1)


@pytest.mark.parametrize("form", FORMS)
def test_pytorch_equals_the_formulas(form: str) -> None:
    encoder = encoder_of(form)
    sequences = pairs_of(encoder, 30, seed=0)
    hidden = concatenate(run_in_pytorch(encoder, sequences)).hidden
    assert hidden is not None
    assert_close_to_scale(hidden, np.concatenate([oracle_of(encoder).hidden(each) for each in sequences]))


@pytest.mark.exhaustive
@pytest.mark.usefixtures("runs_graphs")
@pytest.mark.parametrize("form", ["token ids", "cross-attention"])
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


def test_int8_quantises_both_stacks() -> None:
    encoder = encoder_of("token ids")
    sequences = pairs_of(encoder, 20, seed=1)
    quantized, float32_layers = quantize(encoder, Reference.compute(encoder), sequences)
    names = {name for name, module in quantized.named_modules() if type(module).__name__ == "QuantizedLinear"}
    every = names | set(float32_layers)
    assert {"layers.1.feed_forward.up", "decoder.layers.2.cross_attention.key"} <= every
    assert len(names) > len(float32_layers)
    hidden = concatenate(run_in_pytorch(quantized, sequences)).hidden
    assert hidden is not None
    assert cosines(hidden, np.concatenate([oracle_of(encoder).hidden(each) for each in sequences])).min() >= 0.99


def test_int8_gives_layers_that_read_the_same_rows_the_same_factors_and_no_others() -> None:
    encoder = encoder_of("token ids")
    sequences = pairs_of(encoder, 20, seed=2)
    quantized, float32_layers = quantize(encoder, Reference.compute(encoder), sequences)
    assert not float32_layers

    def factors(name: str) -> list[float]:
        listed: list[float] = quantized.get_parameter(f"decoder.layers.0.{name}.factors").tolist()
        return listed

    assert factors("attention.query") == factors("attention.key") == factors("attention.value")
    assert factors("cross_attention.key") == factors("cross_attention.value") != factors("cross_attention.query")


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
        ({"decoder": {**DECODER, "start_id": 50}}, ["decoder.start_id is 50"]),
        ({"decoder": {**DECODER, "d_ff": 0}}, ["decoder.d_ff is 0"]),
        ({"decoder": {**DECODER, "mask": "windowed"}}, ["decoder.mask is 'windowed'", "causal"]),
        ({"decoder": {**DECODER, "input": "text"}}, ["decoder.input is text"]),
        ({"decoder": {**DECODER, "self_attention": 1}}, ["decoder.self_attention is 1"]),
        ({"decoder": 5}, ["decoder is 5", "object"]),
    ],
)
def test_fields_that_do_not_fit_are_refused(choices: dict[str, Any], facts: list[str]) -> None:
    sizes = {"vocabulary_size": 50, "d_model": 24, "heads": 3, "layers": 2, "d_ff": 40, "max_tokens": 48}
    with pytest.raises(ConfigError) as refused:
        EncoderConfig.from_dict({**sizes, "pooling": "none", "decoder": DECODER, **choices})
    assert all(fact in str(refused.value) for fact in facts)
