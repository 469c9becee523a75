"""Linear biases (ALiBi) have the slopes of `transformers`, one for each head."""

import numpy as np
import torch
from transformers.models.bloom.modeling_bloom import build_alibi_tensor

from headwaiter_export.encoder.positions import alibi_slopes


def test_slopes_are_those_of_bloom() -> None:
    for heads in range(1, 41):
        biases = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)
        np.testing.assert_allclose(alibi_slopes(heads), biases[:, 0, 1], rtol=1e-5)
