"""Who cannot be answered in time is told at once, and when to come again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwaiter_server.errors import InvalidInput, Overloaded
from headwaiter_server.scheduling.admission import Outlook, QueueLimits, admit
from headwaiter_server.scheduling.cost import BatchLimits, CostModel, Shape
from tests.server.scheduling.sequences import pending_of, waiting

COST = CostModel(launch_s=0.5, token_s=0.25, padded_s=0.0, cell_s=0.0)
LIMITS = BatchLimits(tokens=8, cells=1000)
QUEUE = QueueLimits(tokens=64, wait_s=100.0)
NEVER = float("inf")


def _outlook(lengths: list[int], *busy_s: float, ahead_tokens: int = 0, margin_s: float = 0.0) -> Outlook:
    """What comes after sequences without a deadline that came at 0, before devices that are busy for so long."""
    pending = pending_of([waiting(length, index) for index, length in enumerate(lengths)])
    return Outlook(pending, ahead_tokens, busy_s, COST, LIMITS, margin_s)


@pytest.mark.parametrize(
    ("outlook", "length", "due_s", "time_left_s"),
    [
        # Nothing waits, and nothing runs: were it late, that would not be the load's fault.
        (_outlook([], 0.0), 8, NEVER, 0.001),
        (_outlook([], 1.0), 8, NEVER, NEVER),
        # 2.5 s of its own after 1 s of the device's, both with a quarter for caution.
        (_outlook([], 1.0), 8, 10.0, 4.4),
        # Four full batches wait, of 2.5 s each, but it is due before them.
        (_outlook([8] * 4, 1.0), 4, -1.0, 6.0),
        (_outlook([8] * 7, 0.0), 8, NEVER, NEVER),
    ],
)
def test_what_can_be_answered_in_time_is_admitted(
    outlook: Outlook, length: int, due_s: float, time_left_s: float
) -> None:
    admit(outlook, QUEUE, Shape.of([length]), due_s, time_left_s)


@pytest.mark.parametrize(
    ("outlook", "length", "time_left_s", "sentence", "retry_after_s"),
    [
        (_outlook([8] * 7, 1.0), 9, NEVER, "holds 56 of 64 tokens and the request has 9", 1 + 7 * 2.5),
        # What is planned already takes room, too.
        (_outlook([8], 3.0, ahead_tokens=50), 8, NEVER, "holds 58 of 64 tokens", 3 + 2.5),
        (_outlook([8], 99.0), 8, NEVER, r"would wait for 101\.50 s", 101.5),
        (_outlook([8] * 2, 1.0), 8, 9.0, r"could take 10\.625 s, and the deadline is in 9\.000 s", 6.0),
        (_outlook([8] * 2, 1.0, margin_s=1.0), 8, 10.0, r"could take 11\.875 s", 6.0),
        # Two devices share the wait.
        (_outlook([8] * 4, 1.0, 3.0), 8, 9.0, r"could take 10\.625 s", 6.0),
        # There is next to nothing to wait for, or to be seen of it in a moment.
        (
            _outlook([], 0.001),
            8,
            2.0,
            r"could take 3\.126 s, and the deadline is in 2\.000 s: .* 0\.01 s, or with",
            0.01,
        ),
        (_outlook([], 0.001), 8, -1.0, r"the deadline is in 0\.000 s: try again in 0\.01 s, or with more time$", 0.01),
        (_outlook([], 0.0, 3.0, ahead_tokens=60), 8, NEVER, r"holds 60 of 64 tokens .* 0\.01 s$", 0.01),
    ],
)
def test_what_cannot_is_refused_with_the_time_after_which_to_try_again(
    outlook: Outlook, length: int, time_left_s: float, sentence: str, retry_after_s: float
) -> None:
    with pytest.raises(Overloaded, match=sentence) as refusal:
        admit(outlook, QUEUE, Shape.of([length]), NEVER, time_left_s)
    assert refusal.value.retry_after_s == pytest.approx(retry_after_s)


def test_what_no_queue_could_hold_is_invalid() -> None:
    with pytest.raises(InvalidInput, match="has 65 tokens, and the server queues 64 at most: split it"):
        admit(_outlook([], 0.0), QUEUE, Shape.of([32, 33]), NEVER, NEVER)


outlooks = st.builds(
    lambda lengths, busy_s, ahead_tokens, margin_s: _outlook(
        lengths, *busy_s, ahead_tokens=ahead_tokens, margin_s=margin_s
    ),
    st.lists(st.integers(1, 8), max_size=10),
    st.lists(st.just(0.0) | st.floats(0, 200), min_size=1, max_size=3),
    st.integers(0, 64),
    st.floats(0, 5),
)


def _refusal(outlook: Outlook, length: int, due_s: float, time_left_s: float) -> Overloaded | None:
    try:
        admit(outlook, QUEUE, Shape.of([length]), due_s, time_left_s)
    except Overloaded as refusal:
        return refusal
    return None


@given(outlook=outlooks, length=st.integers(1, 64), due_s=st.floats(-1, 10), time_left_s=st.floats(-1, 300))
def test_nobody_is_told_to_come_again_at_once_or_refused_for_having_more_time(
    outlook: Outlook, length: int, due_s: float, time_left_s: float
) -> None:
    if refusal := _refusal(outlook, length, due_s, time_left_s):
        assert (refusal.retry_after_s or 0.0) >= 0.01
    else:
        assert not _refusal(outlook, length, due_s, time_left_s + 1.0)
        assert not _refusal(outlook, length, due_s, NEVER)


@given(outlook=outlooks, length=st.integers(1, 16), time_left_s=st.floats(0, 300))
def test_who_is_due_before_all_others_is_not_refused_where_who_is_due_after_them_is_admitted(
    outlook: Outlook, length: int, time_left_s: float
) -> None:
    if not _refusal(outlook, length, NEVER, time_left_s):
        assert not _refusal(outlook, length, -1.0, time_left_s)
