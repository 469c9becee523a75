"""A request that cannot be answered in time is refused at once, with the delay after which to try again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwaiter_proto.rules.errors import DeadlineExceeded, HeadwaiterError, Overloaded
from headwaiter_server.scheduling.admission import Backlog, QueueLimits, WaitEstimate, admit
from headwaiter_server.scheduling.cost import BatchLimits, CostModel, Shape
from tests.support.server.sequences import pending_of, waiting

COST = CostModel(launch_s=0.5, token_s=0.25, padded_s=0.0, cell_s=0.0)
LIMITS = BatchLimits(tokens=8, cells=1000)
QUEUE = QueueLimits(tokens=64, wait_s=100.0)
NEVER = float("inf")


def _estimate(lengths: list[int], *busy_s: float, planned_tokens: int = 0) -> WaitEstimate:
    """Return an estimate for a queue of sequences that arrived at 0 without a deadline, and busy devices."""
    pending = pending_of([waiting(length, index) for index, length in enumerate(lengths)])
    return WaitEstimate(Backlog(pending, COST, LIMITS), pending.tokens + planned_tokens, busy_s)


@pytest.mark.parametrize(
    ("estimate", "length", "fair_start_s", "time_left_s"),
    [
        # An idle server admits any deadline: the request runs at once.
        (_estimate([], 0.0), 8, NEVER, 0.001),
        (_estimate([], 1.0), 8, NEVER, NEVER),
        # 1 s until the device is free + 2.5 s of its own + 0.01 s for the reply.
        (_estimate([], 1.0), 8, 10.0, 3.52),
        # Four full batches of 2.5 s are waiting, but the request starts before them.
        (_estimate([8] * 4, 1.0), 4, -1.0, 6.0),
        (_estimate([8] * 7, 0.0), 8, NEVER, NEVER),
    ],
)
def test_a_request_that_can_be_answered_in_time_is_admitted(
    estimate: WaitEstimate, length: int, fair_start_s: float, time_left_s: float
) -> None:
    admit(estimate, QUEUE, Shape.of([length]), fair_start_s, time_left_s)


@pytest.mark.parametrize(
    ("estimate", "length", "time_left_s", "numbers", "retry_after_s"),
    [
        (_estimate([8] * 7, 1.0), 9, NEVER, r"\b56\b.*\b64\b.*\b9\b", 1 + 7 * 2.5),
        # Planned batches count as queued.
        (_estimate([8], 3.0, planned_tokens=50), 8, NEVER, r"\b58\b.*\b64\b", 3 + 2.5),
        (_estimate([8], 99.0), 8, NEVER, r"101\.500 s.*\b100 s", 101.5),
        (_estimate([8] * 2, 1.0), 8, 8.0, r"8\.510 s.*8\.000 s", 6.0),
        # Two devices share the wait.
        (_estimate([8] * 4, 1.0, 3.0), 8, 8.0, r"8\.510 s", 6.0),
        # The delay is never below 0.01 s. The request alone takes 2.5 s + 0.01 s.
        (_estimate([], 0.001), 8, 2.5105, r"2\.511 s.*2\.51[01] s.*0\.01 s", 0.01),
        (_estimate([], 0.0, 3.0, planned_tokens=60), 8, NEVER, r"\b60\b.*\b64\b.*0\.01 s", 0.01),
    ],
)
def test_a_request_that_does_not_fit_now_is_refused_with_the_delay_after_which_to_try_again(
    estimate: WaitEstimate, length: int, time_left_s: float, numbers: str, retry_after_s: float
) -> None:
    with pytest.raises(Overloaded, match=numbers) as refusal:
        admit(estimate, QUEUE, Shape.of([length]), NEVER, time_left_s)
    assert refusal.value.retry_after_s == pytest.approx(retry_after_s)


@pytest.mark.parametrize(
    ("estimate", "time_left_s", "numbers"),
    [
        # The request alone takes 2.5 s + 0.01 s.
        (_estimate([], 0.001), 2.0, r"2\.000 s.*2\.510 s"),
        (_estimate([], 0.001), -1.0, r"0\.000 s.*2\.510 s"),
        (_estimate([8] * 2, 1.0), 2.505, r"2\.505 s.*2\.510 s"),
        # A full queue, and a wait that the server does not admit, are no reason to try again either.
        (_estimate([8] * 7, 1.0, planned_tokens=8), 2.0, r"2\.000 s.*2\.510 s"),
        (_estimate([8], 99.0), 2.0, r"2\.000 s.*2\.510 s"),
    ],
)
def test_a_request_is_not_told_to_try_again_where_its_deadline_is_too_short_without_a_queue(
    estimate: WaitEstimate, time_left_s: float, numbers: str
) -> None:
    with pytest.raises(HeadwaiterError, match=numbers) as refusal:
        admit(estimate, QUEUE, Shape.of([8]), NEVER, time_left_s)
    assert (type(refusal.value), refusal.value.retry_after_s) == (DeadlineExceeded, None)
    assert "try again" not in str(refusal.value)


estimates = st.builds(
    lambda lengths, busy_s, planned_tokens: _estimate(lengths, *busy_s, planned_tokens=planned_tokens),
    st.lists(st.integers(1, 8), max_size=10),
    st.lists(st.just(0.0) | st.floats(0, 200), min_size=1, max_size=3),
    st.integers(0, 64),
)


def _refusal(estimate: WaitEstimate, length: int, fair_start_s: float, time_left_s: float) -> HeadwaiterError | None:
    try:
        admit(estimate, QUEUE, Shape.of([length]), fair_start_s, time_left_s)
    except (DeadlineExceeded, Overloaded) as refusal:
        return refusal
    return None


@given(estimate=estimates, length=st.integers(1, 64), fair_start_s=st.floats(-1, 10), time_left_s=st.floats(-1, 300))
def test_a_delay_is_at_least_10_ms_and_a_later_deadline_never_causes_a_refusal(
    estimate: WaitEstimate, length: int, fair_start_s: float, time_left_s: float
) -> None:
    refusal = _refusal(estimate, length, fair_start_s, time_left_s)
    if isinstance(refusal, Overloaded):
        assert (refusal.retry_after_s or 0.0) >= 0.01
        # After the queue is empty, a request with a deadline as short as this one's is admitted.
        assert not _refusal(_estimate([], 1e-9), length, fair_start_s, time_left_s + 1e-6)
    elif not refusal:
        assert not _refusal(estimate, length, fair_start_s, time_left_s + 1.0)
        assert not _refusal(estimate, length, fair_start_s, NEVER)


# With several devices, a sequence that fills up the batch of the first request may run on another device meanwhile: the
# estimate of the first request does not count on that.
@given(
    estimate=estimates.filter(lambda each: len(each.busy_s) == 1),
    length=st.integers(1, 16),
    time_left_s=st.floats(0, 300),
)
def test_a_request_that_is_admitted_when_it_starts_last_is_also_admitted_when_it_starts_first(
    estimate: WaitEstimate, length: int, time_left_s: float
) -> None:
    if not _refusal(estimate, length, NEVER, time_left_s):
        assert not _refusal(estimate, length, -1.0, time_left_s)
