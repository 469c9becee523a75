"""A rate limit lets a few events of each kind through in a second, and counts the others."""

import pytest

from headwaiter_server.concurrency.rate_limit import RateLimit


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize(
    ("times_s", "per_s", "admitted"),
    [
        ([0.0], 1, [True]),
        ([0.0, 0.1, 0.9], 1, [True, False, False]),
        ([0.0, 0.1, 0.9], 2, [True, True, False]),
        ([0.0, 0.9, 1.0, 1.9, 2.0], 1, [True, False, True, False, True]),
        ([5.0, 5.5, 7.0, 7.5], 1, [True, False, True, False]),
    ],
)
def test_the_first_events_of_a_second_are_let_through(times_s: list[float], per_s: int, admitted: list[bool]) -> None:
    clock = Clock()
    limit = RateLimit(clock)
    result = []
    for clock.now_s in times_s:
        result.append(limit.admit("a", per_s))
    assert result == admitted
    clock.now_s += 1
    assert limit.take_left_out() == ({"a": admitted.count(False)} if False in admitted else {})
    assert not limit.has_left_out


def test_each_kind_has_its_own_second_and_number() -> None:
    clock = Clock()
    limit = RateLimit(clock)
    assert [limit.admit(kind, 1) for kind in "aabbbc"] == [True, False, True, False, False, True]
    assert limit.has_left_out
    assert limit.take_left_out() == {}
    assert limit.take_left_out(all_kinds=True) == {"a": 1, "b": 2}
