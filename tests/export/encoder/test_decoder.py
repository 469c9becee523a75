"""A decoder over an encoder equals the formulas, in every layout and with sequences of any lengths beside it."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwaiter_export.config.choices import DecoderInput, Pooling
from headwaiter_export.config.decoder import DecoderConfig
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.config.field_checks import ConfigError
from headwaiter_export.config.head import HeadActivation, HeadConfig, ScoreFunction
from headwaiter_export.encoder.reference import Reference, concatenate, run_in_pytorch
from headwaiter_export.graphs.graph_layout import Packed
from headwaiter_export.graphs.int8 import quantize
from headwaiter_export.graphs.packed_cpu import PackedCpu
from headwaiter_export.graphs.packed_cuda import PackedCuda
from headwaiter_export.graphs.portable import Portable
from tests.support.export.helpers import (
    RUNTIMES,
    assert_close_to_scale,
    assert_others_change_no_bit,
    cosines,
    oracle_of,
    random_encoder,
    random_sequences,
    run_graph,
    write_graphs,
)
from tests.support.oracle import Array
from tests.support.tiers import exhaustive

DECODER = DecoderConfig(layers=3, d_ff=28, start_id=2)
FORMS: dict[str, dict[str, Any]] = {
    # The classifier's head, as in BART.
    "BART": {
        "head": HeadConfig(
            ("no", "perhaps", "yes"), ScoreFunction.SOFTMAX, poolings=(Pooling.LAST,), activation=HeadActivation.TANH
        ),
    },
    "T5": {
        "norm": "pre",
        "final_norm": True,
        "rms_norm": True,
        "positions": "none",
        "distance_bias": True,
        "gated": True,
        "embedding_norm": False,
    },
    # The first row alone, whose logits are those of words, as in monoT5.
    "monoT5": {
        "norm": "pre",
        "final_norm": True,
        "rms_norm": True,
        "positions": "none",
        "distance_bias": True,
        "embedding_norm": False,
        "decoder": replace(DECODER, input=DecoderInput.START),
        "head": HeadConfig(("score",), ScoreFunction.SIGMOID, bias=False),
    },
    # Learned positions, and a norm after each sum.
    "the first row of BART": {
        "decoder": replace(DECODER, input=DecoderInput.START),
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
}
LAYOUTS = (PackedCpu, PackedCuda, Portable)
# 200 sequences, in batches of 8.
BATCHES, BATCH = 25, 8


@pytest.mark.usefixtures("runs_graphs")
@pytest.mark.parametrize(
    ("form", "layout"),
    [
        # Tracing takes seconds, so every run traces one form in one layout.
        ("BART", PackedCpu),
        *exhaustive(*((form, layout) for form in FORMS for layout in LAYOUTS if (form, layout) != ("BART", PackedCpu))),
    ],
)
def test_rows_and_logits_equal_the_formulas_and_ignore_other_sequences(
    form: str, layout: type[Packed] | type[Portable], tmp_path: Path
) -> None:
    encoder = random_encoder(vocabulary_size=50, **{"decoder": DECODER, **FORMS[form]})
    oracle, rng = oracle_of(encoder), np.random.default_rng(0)
    path = write_graphs(encoder, tmp_path, layout)[layout]
    for seed in range(BATCHES):
        sequences = random_sequences(encoder.config, rng.integers(1, 49, BATCH).tolist(), seed)
        outputs = run_graph(path, RUNTIMES[layout], sequences)
        hidden = [oracle.hidden(each) for each in sequences]
        assert outputs.hidden is not None
        assert_close_to_scale(outputs.hidden, np.concatenate(hidden))
        if encoder.config.head is not None:
            assert outputs.logits is not None
            assert_close_to_scale(np.concatenate(outputs.logits), _logits(oracle, hidden))
    assert_others_change_no_bit(partial(run_graph, path, RUNTIMES[layout]), sequences, 0)


def _logits(oracle: Any, hidden: list[Array]) -> Array:
    return np.concatenate([oracle.logits(rows) for rows in hidden])


@pytest.mark.parametrize("form", ["BART", "monoT5"])
def test_int8_quantises_the_layers_of_a_decoder_too(form: str) -> None:
    encoder = random_encoder(vocabulary_size=50, **{"decoder": DECODER, **FORMS[form]})
    sequences = random_sequences(encoder.config, range(2, 20))
    quantized, float32_layers = quantize(encoder, Reference.compute(encoder), sequences)
    names = {name for name, module in quantized.named_modules() if type(module).__name__ == "QuantizedLinear"}
    attention = ("query", "key", "value", "output")
    linears = {f"{part}.{name}" for part in ("attention", "cross_attention") for name in attention}
    linears |= {"feed_forward.up", "feed_forward.down"}
    expected = {f"decoder.layers.{layer}.{name}" for layer in range(DECODER.layers) for name in linears}
    assert expected <= names | set(float32_layers)
    assert len(names) > len(float32_layers)
    oracle, outputs = oracle_of(encoder), concatenate(run_in_pytorch(quantized, sequences))
    hidden = [oracle.hidden(sequence) for sequence in sequences]
    assert outputs.hidden is not None
    assert cosines(outputs.hidden, np.concatenate(hidden)).min() >= 0.99
    assert outputs.logits is not None
    logits = np.stack([np.concatenate(outputs.logits), _logits(oracle, hidden)])
    assert np.corrcoef(logits.reshape(2, -1))[0, 1] >= 0.99


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
    sizes = {"d_model": 24, "heads": 3, "layers": 2, "d_ff": 40, "max_tokens": 48, "vocabulary_size": 50}
    with pytest.raises(ConfigError) as raised:
        EncoderConfig(**{**sizes, **choices, "decoder": DecoderConfig(**{**vars(DECODER), **decoder})})
    for fact in facts:
        assert fact in str(raised.value)
