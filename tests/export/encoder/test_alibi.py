"""Linear biases (ALiBi) have the slopes of `transformers`, one for each head."""

import numpy as np
import torch
from transformers.models.bloom.modeling_bloom import build_alibi_tensor

from headwaiter_export.config.choices import Mask
from headwaiter_export.encoder.positions import alibi_slopes
from headwaiter_export.encoder.score_terms import ScoreTerms


def test_slopes_are_those_of_bloom() -> None:
    for heads in range(1, 41):
        biases = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)
        np.testing.assert_allclose(alibi_slopes(heads), biases[:, 0, 1], rtol=1e-5)


def test_the_terms_of_cuda_graphs_have_a_slope_for_each_head() -> None:
    # Graphs for CUDA add one array for all sequences. Tracing one takes seconds, so the terms alone are tested here.
    terms = ScoreTerms(Mask.NONE, slopes=(0.5, 0.25)).by_distance(3, torch.float32)
    np.testing.assert_array_equal(terms.numpy(), [[-1.0, -0.5, 0, -0.5, -1.0], [-0.5, -0.25, 0, -0.25, -0.5]])
