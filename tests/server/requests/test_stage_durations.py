"""The stages of a request add up to its duration, and none is negative, whatever intervals its batches have."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwaiter_server.requests.stage_durations import stage_durations
from headwaiter_server.scheduling.job import Interval

REQUEST = Interval(10.0, 20.0)


@pytest.mark.parametrize(
    ("packing", "runs", "assemble_s", "compute_s", "queue_s"),
    [
        # One batch.
        ([(12, 13)], [(13, 16)], 1, 3, 3),
        # Two batches after one another; the second is packed while the first runs.
        ([(12, 13), (14, 15)], [(13, 15), (15, 17)], 1, 4, 2),
        # Two batches run at the same time on two devices.
        ([(12, 13), (12, 13)], [(13, 16), (14, 18)], 1, 5, 1),
        # One batch runs while the other one is packed for a long time.
        ([(12, 13), (13, 17)], [(13, 15), (17, 18)], 3, 3, 1),
        # Only the part of a run until the reply counts.
        ([], [(18, 30)], 0, 2, 7),
        # No batch ran.
        ([], [], 0, 0, 7),
        # The clock was set back during a run.
        ([(12, 11)], [(16, 13)], 0, 0, 7),
    ],
)
def test_each_moment_counts_for_one_stage(
    packing: list[tuple[float, float]],
    runs: list[tuple[float, float]],
    assemble_s: float,
    compute_s: float,
    queue_s: float,
) -> None:
    packed, ran = [Interval(*each) for each in packing], [Interval(*each) for each in runs]
    stages = stage_durations(REQUEST, Interval(10, 11), packed, ran, Interval(18, 20))
    respond_s = 0 if runs == [(18, 30)] else 2
    assert stages == {
        "tokenize": 1,
        "queue": queue_s,
        "assemble": assemble_s,
        "compute": compute_s,
        "respond": respond_s,
    }


def test_time_before_the_server_reads_a_request_counts_for_the_queue() -> None:
    stages = stage_durations(REQUEST, Interval(12, 13), [], [Interval(13, 19)], Interval(19, 20))
    assert (stages["tokenize"], stages["queue"]) == (1, 2)


_moments = st.floats(0.0, 1e6)
_intervals = st.builds(Interval, _moments, _moments)


@given(
    request=st.tuples(_moments, _moments).map(lambda ends: Interval(*sorted(ends))),
    tokenizing=_intervals,
    packing=st.lists(_intervals, max_size=8),
    runs=st.lists(_intervals, max_size=8),
    responding=_intervals,
)
def test_stages_are_never_negative_and_add_up(
    request: Interval, tokenizing: Interval, packing: list[Interval], runs: list[Interval], responding: Interval
) -> None:
    stages = stage_durations(request, tokenizing, packing, runs, responding)
    assert min(stages.values()) >= 0.0
    assert sum(stages.values()) == pytest.approx(request.seconds, rel=1e-9, abs=1e-9)
    assert stages["compute"] <= sum(max(0.0, run.seconds) for run in runs) + 1e-6
