"""The subcommand `bench`, and the load generator."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from headwaiter_client import DeadlineExceeded, HeadwaiterError, Overloaded, Timings
from headwaiter_client.cli import bench
from headwaiter_client.cli.load_generator import (
    Load,
    Outcome,
    Reply,
    closed_loop,
    histogram,
    open_loop,
    poisson_arrivals,
)
from tests.client.cli.conftest import Command, ReusableFake
from tests.support.client.fake_server import FakeServer


@pytest.mark.parametrize("pace", [["--requesters", "3"], ["--rate", "1000"]])
def test_bench_sends_the_requests_and_reports_rates_and_latencies(
    fake: ReusableFake, six_texts: Path, command: Command, pace: list[str]
) -> None:
    assert command.run("bench", six_texts, "--requests", "4", "--texts-per-request", "2", *pace) == 0
    assert fake.texts == sorted(f"text {number}" for number in (0, 1, 2, 3, 4, 5, 0, 1))
    rates, latency, _, *lines = command.printed.splitlines()
    stages, bars = lines[:6], lines[6:]
    assert rates.split()[:3] == ["4", "of", "4"]
    assert " requests/s, " in rates
    assert rates.endswith(" tokens/s")
    assert [word for word in latency.split() if word.startswith("p")] == ["p50", "p95", "p99"]
    assert [line.split()[0] for line in stages] == ["tokenize", "queue", "assemble", "compute", "respond", "network,"]
    assert sum(int(bar.split(" ms ")[1].split()[0]) for bar in bars) == 4


def test_the_time_outside_of_the_server_is_the_latency_without_the_stages() -> None:
    outcomes = [
        Outcome(due_s=1.0, sent_s=1.5, replied_s=4.0, tokens=1, error=None, timings=timings)
        for timings in (Timings(2.5, 0.25, 0.5, 0.0, 1.0, 0.25, total_s=2.0, batches=1),) * 2
    ]
    stages_s = bench.stage_seconds(outcomes)
    assert {stage: seconds.tolist() for stage, seconds in stages_s.items()} == {
        "tokenize": [0.25] * 2,
        "queue": [0.5] * 2,
        "assemble": [0.0] * 2,
        "compute": [1.0] * 2,
        "respond": [0.25] * 2,
        bench.OUTSIDE: [1.0] * 2,
    }
    # The round trips of two calls at once exceed the time since sending, although not the time since the due time.
    overlapping = Timings(2.75, 0.25, 0.5, 0.0, 1.0, 0.25, total_s=2.0, batches=2)
    outcomes.append(Outcome(due_s=1.0, sent_s=1.5, replied_s=4.0, tokens=2, error=None, timings=overlapping))
    assert bench.OUTSIDE not in bench.stage_seconds(outcomes)


def test_stages_of_calls_that_ran_at_the_same_time_are_not_subtracted_from_the_latency(
    server: FakeServer, six_texts: Path, command: Command
) -> None:
    server.description.limits.max_sequences = 2
    assert command.run("bench", six_texts, "--requests", "2", "--texts-per-request", "40") == 0
    assert len(server.requests) > 40
    assert bench.OUTSIDE not in command.printed
    # The fake server says 1, 2, 3, 4 and 5 s.
    shares = [line.split()[-1] for line in command.printed.splitlines()[3:8]]
    assert shares == ["6.7%", "13.3%", "20.0%", "26.7%", "33.3%"]


def test_errors_are_counted_by_class_and_not_retried(fake: ReusableFake, six_texts: Path, command: Command) -> None:
    fake.errors_by_text = {"text 1": Overloaded("full", retry_after_s=0.0), "text 3": DeadlineExceeded("late")}
    assert command.run("bench", six_texts, "--requests", "12") == 0
    first, *_, overloaded, late = command.printed.splitlines()
    assert first.split()[:3] == ["8", "of", "12"]
    assert overloaded.startswith("2 Overloaded")
    assert overloaded.endswith(": full")
    assert late.startswith("2 DeadlineExceeded")
    assert late.endswith("--timeout-s: late")


def test_bench_fails_if_no_request_is_answered(fake: ReusableFake, six_texts: Path, command: Command) -> None:
    fake.errors_by_text = {"text": HeadwaiterError("down")}
    assert command.run("bench", six_texts, "--requests", "3") == 1
    first, second = command.printed.splitlines()
    assert first.split()[:3] == ["0", "of", "3"]
    assert second.startswith("3 HeadwaiterError")


def test_bench_fails_at_once_if_the_server_accepts_no_requests(
    fake: ReusableFake, six_texts: Path, command: Command
) -> None:
    fake.serving = False
    assert "localhost:50051" in command.refusal("bench", six_texts)
    assert fake.requests == []


async def test_a_closed_loop_has_one_request_in_flight_per_requester() -> None:
    in_flight = most_in_flight = 0
    barrier = asyncio.Barrier(3)

    async def send(request: Sequence[str], _: float) -> Reply:
        nonlocal in_flight, most_in_flight
        in_flight += 1
        most_in_flight = max(most_in_flight, in_flight)
        await barrier.wait()  # Opens for three requests at a time.
        in_flight -= 1
        return Reply(len(request))

    load = await closed_loop(send, [["a"]] * 6, requesters=3)
    assert (most_in_flight, sum(outcome.tokens for outcome in load.outcomes)) == (3, 6)


async def test_an_open_loop_sends_before_earlier_requests_are_answered() -> None:
    sent = 0
    all_sent = asyncio.Event()

    async def send(request: Sequence[str], _: float) -> Reply:
        nonlocal sent
        sent += 1
        if sent == 5:
            all_sent.set()
        await all_sent.wait()
        return Reply(len(request))

    load = await open_loop(send, [["a"]] * 5, poisson_arrivals(1e4))
    assert [outcome.tokens for outcome in load.outcomes] == [1] * 5


async def test_latency_in_an_open_loop_counts_from_the_due_time() -> None:
    async def send(_: str, due_s: float) -> Reply:
        await asyncio.sleep(0)
        return Reply(1)

    # Both requests were due one second before the start.
    load = await open_loop(send, ["a", "b"], [-1.0, -1.0])
    assert all(outcome.latency_s >= 1.0 for outcome in load.outcomes)
    assert load.late_s >= 1.0


async def test_an_open_loop_gives_up_unanswered_requests_after_the_grace_time() -> None:
    async def send(_: str, due_s: float) -> Reply:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return Reply(3, TimeoutError())

    load = await open_loop(send, ["a"], [0.0], grace_s=0.01)
    assert [(outcome.tokens, type(outcome.error)) for outcome in load.outcomes] == [(3, TimeoutError)]
    assert load.answered == []


def test_the_time_to_the_last_answer_does_not_count_errors() -> None:
    outcomes = [Outcome(1.0, 1.0, 3.0, 5, None), Outcome(1.0, 1.0, 9.0, 5, TimeoutError())]
    assert Load(outcomes, started_s=1.0, sending_s=1.0, busy=0.0).answered_s == 2.0


def test_poisson_arrivals_have_the_rate_and_repeat_with_the_seed() -> None:
    arrivals_s = list(islice(poisson_arrivals(100.0, seed=0), 10_000))
    assert arrivals_s == list(islice(poisson_arrivals(100.0, seed=0), 10_000))
    assert (np.diff(arrivals_s) > 0).all()
    assert arrivals_s[-1] == pytest.approx(100.0, rel=0.05)


def test_histogram_bins_end_at_powers_of_two() -> None:
    assert histogram([0.0009, 0.001, 0.0011, 0.0041]) == {1: 2, 2: 1, 4: 0, 8: 1}
    assert histogram([0.0]) == {2**-10: 1}
