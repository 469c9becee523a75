"""Sparse vectors of a large vocabulary equal the formulas, whatever sequences are beside them."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headwaiter_export.config.choices import Pooling
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.config.field_checks import ConfigError
from headwaiter_export.config.head import HeadActivation
from headwaiter_export.config.vocabulary_head import VocabularyHeadConfig
from headwaiter_export.encoder.reference import run_in_pytorch
from headwaiter_export.graphs.packed_cpu import PackedCpu
from headwaiter_export.graphs.packed_cuda import PackedCuda
from headwaiter_export.graphs.portable import Portable
from tests.support.export.helpers import (
    RUNTIMES,
    assert_close_to_scale,
    assert_equals_formulas,
    assert_others_change_no_bit,
    oracle_of,
    random_encoder,
    random_sequences,
    run_graph,
    write_graphs,
)
from tests.support.tiers import exhaustive

# More than the tokens whose logits are computed at once, and no multiple of them.
VOCABULARY = 5000
SPARSE: dict[str, Any] = {
    "vocabulary_size": VOCABULARY,
    "pooling": Pooling.MAX,
    "vocabulary_head": VocabularyHeadConfig(HeadActivation.GELU),
}
LENGTHS = (1, 48, 7, 3, 20)


def test_pytorch_equals_the_formulas() -> None:
    encoder = random_encoder(**SPARSE)
    oracle = oracle_of(encoder)
    sequences = random_sequences(encoder.config, LENGTHS)
    for sequence, outputs in zip(sequences, run_in_pytorch(encoder, sequences), strict=True):
        expected = oracle.pooled(oracle.hidden(sequence))
        assert_close_to_scale(outputs.pooled, expected[None])
        assert expected.shape == (VOCABULARY,)
        assert 0.01 < (expected > 0).mean() < 1


@pytest.mark.usefixtures("runs_graphs")
@pytest.mark.parametrize("layout", [PackedCpu, *exhaustive(PackedCuda, Portable)])
def test_graphs_equal_the_formulas_and_ignore_other_sequences(
    layout: type[PackedCpu | PackedCuda | Portable], tmp_path: Path
) -> None:
    encoder = random_encoder(**SPARSE)
    run = partial(run_graph, write_graphs(encoder, tmp_path, layout)[layout], RUNTIMES[layout])
    sequences = random_sequences(encoder.config, LENGTHS)
    assert_equals_formulas(encoder, run, [sequences])
    assert_others_change_no_bit(run, sequences, 0)


@pytest.mark.parametrize(
    "choices", [{"pooling": "mean"}, {"normalize": True}, {"vocabulary_size": 0, "feature_width": 6}]
)
def test_a_head_that_fits_no_other_choice_is_refused(choices: dict[str, Any]) -> None:
    sizes = {"d_model": 24, "heads": 3, "layers": 2, "d_ff": 40, "max_tokens": 48}
    with pytest.raises(ConfigError, match="vocabulary_head"):
        EncoderConfig(**{**sizes, **SPARSE, **choices})
