"""The command `bench`, and the load it offers."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from headwaiter_client import HeadwaiterError, InvalidInput, Overloaded
from headwaiter_client.cli import main
from headwaiter_client.cli.load_generator import closed_loop, histogram, open_loop
from tests.client.cli.conftest import Lasting


@pytest.mark.parametrize("pace", [["--requesters", "3"], ["--rate", "1000"]])
def test_bench_sends_as_many_requests_as_it_is_told_and_shows_how_they_fared(
    fake: Lasting, six: Path, capsys: pytest.CaptureFixture[str], pace: list[str]
) -> None:
    assert main(["bench", str(six), "--requests", "4", "--texts-per-request", "2", *pace]) == 0
    assert fake.texts == sorted(f"text {number}" for number in (0, 1, 2, 3, 4, 5, 0, 1))
    rates, latency, *bars = capsys.readouterr().out.splitlines()
    assert rates.startswith("4 of 4 requests answered in ")
    assert " requests/s, " in rates
    assert rates.endswith(" tokens/s")
    assert [word for word in latency.split() if word.startswith("p")] == ["p50", "p95", "p99"]
    assert sum(int(bar.split()[3]) for bar in bars) == 4


def test_errors_are_counted_by_their_kind_and_not_sent_again(
    fake: Lasting, six: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.at = {"text 1": Overloaded("full", retry_after_s=0.0), "text 3": InvalidInput("bad")}
    assert main(["bench", str(six), "--requests", "12"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("8 of 12 requests answered")
    assert said[-2:] == ["2 Overloaded, such as: full", "2 InvalidInput, such as: bad"]


def test_bench_fails_where_nothing_is_answered(fake: Lasting, six: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake.at = {"text": HeadwaiterError("down")}
    assert main(["bench", str(six), "--requests", "3"]) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("0 of 3 requests answered")
    assert second == "3 HeadwaiterError, such as: down"


def test_bench_does_not_wait_for_a_server_that_is_not_there(
    fake: Lasting, six: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.serving = False
    assert main(["bench", str(six)]) == 1
    assert capsys.readouterr().err == "headwaiter-client: the server at localhost:50051 does not take requests\n"


async def test_in_the_closed_loop_as_many_wait_for_an_answer_as_there_are_requesters() -> None:
    inside = most = 0
    door = asyncio.Barrier(3)

    async def send(_: Sequence[str]) -> int:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await door.wait()  # Opens for three at a time.
        inside -= 1
        return 1

    outcomes = await closed_loop(send, [["a"]] * 6, requesters=3)
    assert (most, sum(one.tokens for one in outcomes)) == (3, 6)


async def test_in_the_open_loop_requests_go_before_the_last_are_answered() -> None:
    sent = 0
    all_sent = asyncio.Event()

    async def send(request: Sequence[str]) -> int:
        nonlocal sent
        sent += 1
        if sent == 5:
            all_sent.set()
        await all_sent.wait()
        return len(request)

    outcomes = await open_loop(send, [["a"]] * 5, rate_s=1e4)
    assert [one.tokens for one in outcomes] == [1] * 5


def test_latencies_are_counted_up_to_powers_of_two() -> None:
    assert histogram([0.0009, 0.001, 0.0011, 0.0041]) == {1: 2, 2: 1, 4: 0, 8: 1}
    assert histogram([0.0]) == {2**-10: 1}
