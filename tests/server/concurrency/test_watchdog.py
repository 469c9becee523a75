"""A task hangs when it takes much longer than predicted; time in which the process was suspended does not count."""

import pytest

from headwaiter_server.concurrency.watchdog import Watchdog, run_limit_s


@pytest.mark.parametrize(
    ("predicted_s", "limit_s"), [(0.0, 30.0), (0.01, 30.0), (1.5, 30.0), (2.0, 40.0), (60.0, 1200.0)]
)
def test_a_run_may_take_20_times_its_predicted_time_and_at_least_30_s(predicted_s: float, limit_s: float) -> None:
    assert run_limit_s(predicted_s) == limit_s


def seconds_until_it_hangs(watchdog: Watchdog, started_s: float) -> float | None:
    """Check once a second; return the seconds of the check that fails, or None if none of 1,000 checks fails."""
    checks = (started_s + count for count in range(1, 1001))
    return next((now_s - started_s for now_s in checks if watchdog.hangs(now_s)), None)


def test_each_task_has_the_time_from_the_end_of_the_task_before() -> None:
    watchdog = Watchdog()
    watchdog.add(30.0, 0.0)
    watchdog.add(40.0, 0.0)
    for now_s in range(1, 30):
        assert not watchdog.hangs(float(now_s))
    watchdog.end(29.0)
    assert seconds_until_it_hangs(watchdog, 29.0) == 41.0


def test_a_thread_without_a_task_never_hangs() -> None:
    watchdog = Watchdog()
    assert seconds_until_it_hangs(watchdog, 0.0) is None
    watchdog.add(30.0, 5000.0)
    assert seconds_until_it_hangs(watchdog, 5000.0) == 31.0
    watchdog.end(5031.0)
    assert seconds_until_it_hangs(watchdog, 5031.0) is None
