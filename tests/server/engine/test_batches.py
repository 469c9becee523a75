"""The list of batches: the latest of all models, in order, without a way to tell how much the server has answered."""

from array import array
from types import SimpleNamespace
from typing import Any

import pytest

from headwaiter_server.engine.description import batches_reply
from headwaiter_server.models.running_model import RunningModel
from headwaiter_server.scheduling.batch_result import RecentBatch


def ran(end_s: float, lengths: list[int], requests: list[int]) -> RecentBatch:
    return RecentBatch(array("I", lengths), array("Q", requests), end_s, predicted_s=0.25, measured_s=0.5)


def with_batches(name: str, *batches: RecentBatch) -> RunningModel:
    """Return a model that has run batches."""
    unused: Any = None
    queue: Any = SimpleNamespace(recent_batches=batches)
    facts: Any = SimpleNamespace(name=name, version="3")
    return RunningModel(facts, unused, unused, unused, queue, unused, unused)


def test_batches_of_several_models_are_listed_in_the_order_in_which_they_ended() -> None:
    first = with_batches("first", ran(1.0, [5], [70]), ran(3.0, [6], [72]))
    reply = batches_reply([first, with_batches("second", ran(2.0, [7], [71]))], now_s=3.5)
    assert [(batch.model, batch.version, batch.ended_s_ago) for batch in reply.batches] == [
        ("first", "3", 2.5),
        ("second", "3", 1.5),
        ("first", "3", 0.5),
    ]
    assert [(batch.predicted_s, batch.measured_s) for batch in reply.batches] == [(0.25, 0.5)] * 3


def test_the_requests_of_a_list_are_numbered_from_0_so_that_they_tell_only_which_sequences_belong_together() -> None:
    model = with_batches("tiny", ran(1.0, [5, 4, 3], [907, 907, 905]), ran(2.0, [2, 9], [905, 908]))
    reply = batches_reply([model], now_s=2.0)
    assert [list(batch.lengths) for batch in reply.batches] == [[5, 4, 3], [2, 9]]
    assert [list(batch.requests) for batch in reply.batches] == [[0, 0, 1], [1, 2]]


@pytest.mark.parametrize(
    ("sequences", "listed"),
    [
        (1, 64),
        (128, 64),
        (1000, 8),
        (8192, 1),
        # The latest batch is listed however large it is.
        (9000, 1),
    ],
)
def test_a_reply_has_at_most_64_batches_and_8192_sequences_the_latest_ones(sequences: int, listed: int) -> None:
    batches = [ran(float(end_s), [1] * sequences, [end_s] * sequences) for end_s in range(100)]
    reply = batches_reply([with_batches("even", *batches[::2]), with_batches("odd", *batches[1::2])], now_s=99.0)
    assert [batch.ended_s_ago for batch in reply.batches] == list(range(listed - 1, -1, -1))
