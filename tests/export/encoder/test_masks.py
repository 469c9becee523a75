"""Masks hide tokens in every layout."""

from pathlib import Path

import numpy as np
import pytest

from headwaiter_export.encoder.encoder import Encoder
from headwaiter_server.runtime.bundle import Bundle
from tests.support.export.helpers import FP32_GRAPHS, Runtime, random_sequences, run_hidden


@pytest.mark.exhaustive
@pytest.mark.parametrize(("file", "runtime"), FP32_GRAPHS)
def test_in_a_causal_graph_a_token_changes_no_earlier_output(
    file: str, runtime: Runtime, causal_bundle: Path, causal_encoder: Encoder
) -> None:
    sequences = random_sequences(causal_encoder.config, (9, 12))
    before = run_hidden(causal_bundle / file, runtime, sequences)[0]
    for changed in range(9):
        sequences[0] = random_sequences(causal_encoder.config, (9,))[0]
        sequences[0][changed] = 1e4
        after = run_hidden(causal_bundle / file, runtime, sequences)[0]
        assert after[:changed].tobytes() == before[:changed].tobytes()
        assert (after[changed:] != before[changed:]).any(axis=1).all()


# Exporting another bundle takes seconds.
@pytest.mark.exhaustive
@pytest.mark.parametrize(("file", "runtime"), FP32_GRAPHS)
def test_in_a_self_excluding_graph_a_tokens_weight_on_itself_is_zero(
    file: str, runtime: Runtime, self_excluding_bundle: Path, self_excluding_encoder: Encoder
) -> None:
    sequences = random_sequences(self_excluding_encoder.config, (9, 2))
    before = np.concatenate(run_hidden(self_excluding_bundle / file, runtime, sequences))
    sequences[0][4] = 1e4
    after = np.concatenate(run_hidden(self_excluding_bundle / file, runtime, sequences))
    assert [row for row in range(11) if after[row].tobytes() == before[row].tobytes()] == [4, 9, 10]


@pytest.mark.exhaustive
def test_a_self_excluding_bundle_has_golden_inputs_of_two_tokens_and_more(self_excluding_bundle: Path) -> None:
    bundle = Bundle.open(self_excluding_bundle)
    assert bundle.manifest.min_tokens == 2
    assert sorted({len(sequence) for sequence in bundle.golden().sequences})[:3] == [2, 3, 4]
