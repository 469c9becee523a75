"""The encoder of each family of checkpoints gives the hidden rows that `transformers` gives."""

from pathlib import Path

import pytest

from headwaiter_export.encoder.reference import run_in_pytorch
from tests.support.export.family_examples import EXAMPLES, Example, relative_difference


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: each.label)
def test_the_encoder_of_a_family_equals_transformers(example: Example, tmp_path: Path) -> None:
    encoder, sequences, expected = example.read(tmp_path)
    for outputs, rows in zip(run_in_pytorch(encoder, sequences), expected, strict=True):
        assert relative_difference(outputs.hidden, rows) <= 1e-5
