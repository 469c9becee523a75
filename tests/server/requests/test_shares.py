"""No connection can hold all of a limit, and what a connection gives back is free again."""

from contextlib import ExitStack

import pytest

from headwaiter_proto.rules.errors import Overloaded
from headwaiter_server.requests.shares import ReplyLimit, Shares


def take_all(shares: Shares, connection: str, amount: int = 1) -> int:
    """Take an amount as often as it fits, and return how often."""
    taken = 0
    while shares.fits(connection, amount):
        shares.take(connection, amount)
        taken += 1
    return taken


@pytest.mark.parametrize(
    ("limit", "taken"), [(1, [1, 0]), (2, [1, 0]), (3, [1, 1, 0]), (8, [4, 2, 1, 0]), (8192, [4096, 2048, 1024, 512])]
)
def test_each_further_connection_can_take_half_of_what_is_left(limit: int, taken: list[int]) -> None:
    shares = Shares(limit)
    assert [take_all(shares, str(connection)) for connection in range(len(taken))] == taken


@pytest.mark.parametrize(("connections", "each"), [(1, 50), (2, 33), (4, 20), (9, 10)])
def test_connections_that_take_in_turn_get_equal_shares(connections: int, each: int) -> None:
    shares = Shares(100)
    names = [str(number) for number in range(connections)]
    for _ in range(100):
        for name in names:
            if shares.fits(name, 1):
                shares.take(name, 1)
    assert {shares.held(name) for name in names} == {each}


def test_an_amount_above_the_limit_fits_only_while_nothing_is_held() -> None:
    shares = Shares(10)
    assert shares.fits("a", 1000)
    shares.take("a", 1000)
    assert not shares.fits("b", 1)
    shares.give_back("a", 1000)
    assert shares.held("a") == 0
    assert shares.fits("b", 1000)


def test_empty_amounts_may_be_given_back_in_any_order() -> None:
    shares = Shares(10)
    for amount in (0, 0, 3):
        shares.take("a", amount)
    for amount in (0, 3, 0):
        shares.give_back("a", amount)
    assert shares.held("a") == 0
    assert shares.fits("a", 10)


def test_a_reply_that_is_larger_than_was_expected_holds_its_real_size() -> None:
    limit = ReplyLimit(100)
    with ExitStack() as one, ExitStack() as other:
        limit.hold("a", 10, one)
        # Alone, a reply of any size fits, although a part of it is reserved already.
        limit.hold("a", 1000, one, reserved_bytes=10)
        with pytest.raises(Overloaded):
            limit.hold("b", 1, other)
    with ExitStack() as one, ExitStack() as other:
        limit.hold("a", 10, one)
        limit.hold("b", 10, other)
        with pytest.raises(Overloaded):
            limit.hold("b", 90, other, reserved_bytes=10)
        limit.hold("b", 40, other, reserved_bytes=10)
    with ExitStack() as one:
        limit.hold("a", 1000, one)
