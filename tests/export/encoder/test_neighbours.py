"""The neighbours of a row are rows of its own sequence, in every arrangement of sequences."""

import pytest
import torch

from headwaiter_export.encoder.attention_layout import AttentionLayout, SingleSequence
from headwaiter_export.graphs.graph_layout import Packed
from headwaiter_export.graphs.portable import Portable


@pytest.mark.parametrize(
    ("layout", "rows", "expected"),
    [
        (SingleSequence(3), [1, 2, 3], [[0, 1, 2], [1, 2, 3], [2, 3, 0]]),
        # Sequences of 3, 1 and 2 tokens.
        (
            Packed(
                {"positions": torch.tensor([0, 1, 2, 0, 0, 1]), "lengths": torch.tensor([3, 1, 2], dtype=torch.int32)}
            ),
            [1, 2, 3, 4, 5, 6],
            [[0, 1, 2], [1, 2, 3], [2, 3, 0], [0, 4, 0], [0, 5, 6], [5, 6, 0]],
        ),
        # The rows of 9 are padding.
        (
            Portable({"attention_mask": torch.tensor([[1, 1, 1], [1, 0, 0]])}),
            [1, 2, 3, 4, 9, 9],
            [[0, 1, 2], [1, 2, 3], [2, 3, 0], [0, 4, 0]],
        ),
    ],
    ids=["single", "packed", "portable"],
)
def test_neighbours_are_rows_of_the_same_sequence(
    layout: AttentionLayout, rows: list[int], expected: list[list[int]]
) -> None:
    found = layout.neighbours(torch.tensor(rows, dtype=torch.float32)[:, None], (-1, 0, 1))
    assert found[: len(expected), :, 0].tolist() == expected
    # At a distance of four rows, a sequence of three rows has no neighbours.
    assert not layout.neighbours(torch.ones(len(rows), 1), (-4, 4))[: len(expected)].any()
