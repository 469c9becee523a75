"""The formulas of attention scores and of pooling keep to the range of their number formats."""

import numpy as np
import pytest
import torch

from headwaiter_export.config.choices import ROW_POOLINGS, Mask, Pooling
from headwaiter_export.encoder.attention import attention
from headwaiter_export.encoder.pooling import pool
from headwaiter_export.encoder.score_terms import MASKED_SCORE, ScoreTerms
from headwaiter_export.graphs.portable import Portable

HEAD_DIM = 64


def test_in_fp16_a_product_beyond_its_range_is_scaled_before_it_is_stored() -> None:
    # 64 · 60² = 230,400 is beyond float16; an eighth of it is not.
    rows = torch.full((2, HEAD_DIM), 60.0, dtype=torch.half)
    value = torch.tensor([[1.0], [3.0]], dtype=torch.half)
    weights, context = attention(rows, rows, value, None)
    assert (weights == 0.5).all()
    assert (context == 2.0).all()


def test_in_fp16_a_query_that_attends_to_no_key_gives_no_nan() -> None:
    rows = torch.ones(2, HEAD_DIM, dtype=torch.half)
    value = torch.tensor([[1.0], [3.0]], dtype=torch.half)
    _, context = attention(rows, rows, value, torch.full((2, 2), MASKED_SCORE))
    assert (context == 2.0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_number_of_masked_pairs_stays_finite_in_the_kernel_and_is_below_all_scores(dtype: torch.dtype) -> None:
    terms = ScoreTerms(Mask.CAUSAL).by_distance(3, dtype)[0].numpy().astype(np.float32)
    assert terms[:3].tolist() == [0.0, 0.0, 0.0]
    # The kernel computes powers of two, so it multiplies scores by log₂e in float32.
    assert np.isfinite(terms * np.float32(np.log2(np.e))).all()
    assert (terms[3:] <= -65_504).all()


@pytest.mark.parametrize("pooling", ROW_POOLINGS)
def test_infinity_in_a_cell_of_padding_changes_no_pooled_vector(pooling: Pooling) -> None:
    cells = torch.tensor([[1.0, -2.0], [3.0, 5.0], [torch.inf, -torch.inf]])
    padded, alone = (
        pool(cells[: len(mask)], Portable({"attention_mask": torch.tensor([mask])}), (pooling,), 1)
        for mask in ([1, 1, 0], [1, 1])
    )
    assert padded is not None
    assert alone is not None
    assert padded.tolist() == alone.tolist()
