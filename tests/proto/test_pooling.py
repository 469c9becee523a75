"""Pooling on the host agrees with sentence-transformers."""

import numpy as np
import pytest
import torch

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.pooling import POOLINGS, pool

NAMES = {
    pb.POOLING_MEAN: "mean",
    pb.POOLING_CLS: "cls",
    pb.POOLING_MAX: "max",
    pb.POOLING_LAST: "lasttoken",
    pb.POOLING_WEIGHTED_MEAN: "weightedmean",
    pb.POOLING_MEAN_SQRT_LEN: "mean_sqrt_len_tokens",
}


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("skipped_rows", [0, 3])
def test_a_vector_agrees_with_sentence_transformers(pooling: pb.Pooling, skipped_rows: int) -> None:
    from sentence_transformers.sentence_transformer.modules import Pooling

    reference = Pooling(16, NAMES[pooling], include_prompt=False)
    for n in (2, 3, 4, 5, 200):
        if n <= skipped_rows and pooling == pb.POOLING_MAX:
            continue
        rows = np.random.default_rng(n).normal(size=(n, 16)).astype(np.float32)
        features = {"token_embeddings": torch.from_numpy(rows)[None], "attention_mask": torch.ones(1, n)}
        expected = reference({**features, "prompt_length": skipped_rows})["sentence_embedding"][0].numpy()
        vector = pool(rows, pooling, skipped_rows)
        assert vector.dtype == np.float32
        np.testing.assert_allclose(vector, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_float16_rows_are_pooled_in_float32(pooling: pb.Pooling) -> None:
    rows = np.full((4096, 2), 60_000, np.float16)
    factor = 64 if pooling == pb.POOLING_MEAN_SQRT_LEN else 1
    assert pool(rows, pooling).tolist() == [factor * float(np.float16(60_000))] * 2


def test_the_last_row_is_the_maximum_if_all_rows_belong_to_the_prompt() -> None:
    """sentence-transformers gives minus infinity, which no reply can have."""
    rows = np.array([[9, 2], [3, 4]], np.float32)
    assert pool(rows, pb.POOLING_MAX, 2).tolist() == [3, 4]
