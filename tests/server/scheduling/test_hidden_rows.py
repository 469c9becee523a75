"""Sequences with and without hidden rows share a batch only if the copies that nobody needs are cheap."""

import pytest

from headwaiter_server.scheduling.cost import BatchLimits, CostModel
from headwaiter_server.scheduling.planner import plan
from tests.server.scheduling.sequences import pending_of, waiting

LIMITS = BatchLimits(tokens=512, cells=512 * 256)
NOW_S = 40.0


@pytest.mark.parametrize(
    ("hidden_row_s", "hidden", "batch"),
    [
        # Copies are cheap: all sequences share a batch, those of the leader's kind first.
        (1e-6, [True, False, False, True], [0, 3, 1, 2]),
        (0.0, [False, True, False, True], [0, 2, 1, 3]),
        # A copy of 10 rows costs half a launch: one other sequence may join.
        (1.5e-4, [True, False, False, True], [0, 3, 1, 2]),
        (1.6e-4, [True, False, False, True], [0, 3, 1]),
        (3.1e-4, [True, False, False, True], [0, 3]),
        # The rows of the leader would be copied without need.
        (3.1e-4, [False, False, False, True], [0, 1, 2]),
        # No rows are wasted.
        (1.0, [True, True, True, True], [0, 1, 2, 3]),
    ],
)
def test_sequences_with_hidden_rows_share_a_batch_with_others_only_if_that_costs_less_than_a_launch(
    hidden_row_s: float, hidden: list[bool], batch: list[int]
) -> None:
    cost = CostModel(launch_s=3e-3, token_s=1e-4, padded_s=0.0, cell_s=0.0, hidden_row_s=hidden_row_s)
    queue = [waiting(10, index, arrived_s=index * 1e-3, hidden=each) for index, each in enumerate(hidden)]
    planned = plan(pending_of(queue), NOW_S, cost, LIMITS)
    assert [sequence.index for sequence in planned.batch] == batch
    rows = 10 * len(batch) if any(hidden[index] for index in batch) else 0
    assert planned.seconds == pytest.approx(3e-3 + 1e-3 * len(batch) + hidden_row_s * rows)
