"""Other sequences in a batch never change a sequence's result, with every mask."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from headwaiter_export.config.choices import Mask
from headwaiter_export.config.encoder import EncoderConfig
from tests.support.export.helpers import (
    FP32_GRAPHS,
    Runtime,
    assert_others_change_no_bit,
    random_sequences,
    run_graph,
    run_hidden,
)
from tests.support.tiers import exhaustive

GRAPHS = [
    *FP32_GRAPHS,
    pytest.param("packed-cuda.fp16.onnx", "cuda", id="packed-cuda-fp16", marks=pytest.mark.gpu),
]
LENGTHS = (9, 5, 48, 2)
# Allowed difference, relative to the largest value: a few of the last bits of float32.
LAST_BITS = 1e-6

Exported = tuple[Path, EncoderConfig]


# Exporting a bundle takes seconds, so one mask is left to the exhaustive tests.
@pytest.fixture(params=[Mask.NONE, Mask.CAUSAL, *exhaustive(Mask.SELF_EXCLUDING)])
def exported(request: pytest.FixtureRequest, runs_graphs: None) -> Exported:
    """A bundle with each mask, and its configuration."""
    name = {Mask.NONE: "feature", Mask.CAUSAL: "causal", Mask.SELF_EXCLUDING: "self_excluding"}[request.param]
    return request.getfixturevalue(f"{name}_bundle"), request.getfixturevalue(f"{name}_encoder").config


@pytest.mark.parametrize(("file", "runtime"), GRAPHS)
@pytest.mark.parametrize("poison", [1e4, -1e4, 3e38, np.inf, np.nan])
def test_the_content_of_other_sequences_changes_no_bit_of_a_result(
    file: str, runtime: Runtime, poison: float, exported: Exported
) -> None:
    bundle, config = exported
    sequences = random_sequences(config, LENGTHS)
    assert_others_change_no_bit(partial(run_graph, bundle / file, runtime), sequences, poison)


@pytest.mark.parametrize(("file", "runtime"), FP32_GRAPHS)
def test_a_sequence_has_the_same_result_alone_and_in_batches_of_any_order(
    file: str, runtime: Runtime, exported: Exported
) -> None:
    bundle, config = exported
    run, sequences = partial(run_hidden, bundle / file, runtime), random_sequences(config, LENGTHS)
    expected = [run([sequence])[0] for sequence in sequences]
    for rows in (run(sequences), run(sequences[::-1])[::-1]):
        for actual, alone in zip(rows, expected, strict=True):
            np.testing.assert_allclose(actual, alone, rtol=0, atol=LAST_BITS * np.abs(alone).max())
