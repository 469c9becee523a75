"""The command `bench`: how a server fares under load."""

import argparse
import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import cycle, islice

import numpy as np

from headwaiter_client.aio import AsyncClient
from headwaiter_client.cli.console import bars, console
from headwaiter_client.cli.load_generator import Outcome, closed_loop, histogram, open_loop
from headwaiter_client.cli.shared_flags import Commands, add_command, add_text_flags, connection, count, text_options
from headwaiter_client.cli.text_files import read_texts
from headwaiter_client.errors import Unavailable
from headwaiter_client.transport.retries import RetryPolicy


def add_to(commands: Commands) -> None:
    """Adds the command."""
    flags = add_command(commands, "bench", run, "send the texts of a file as requests, and show how they fared")
    add_text_flags(flags)
    flags.add_argument("--requests", type=count, default=1000, help="how many to send (default: 1000)")
    flags.add_argument(
        "--texts-per-request", type=count, default=1, help="taken in turn, again from the first (default: 1)"
    )
    pace = flags.add_mutually_exclusive_group()
    pace.add_argument(
        "--requesters", type=count, default=8, help="how many send, each the next when it has an answer (default: 8)"
    )
    pace.add_argument("--rate", type=_rate, help="requests a second, at random moments, answered or not")


def run(arguments: argparse.Namespace) -> int:
    """Sends the requests and prints rates, latencies and errors; returns 1 when none was answered."""
    screen = console()
    outcomes, seconds = asyncio.run(_offer(arguments, read_texts(arguments).values))
    answered = [one for one in outcomes if one.error is None]
    tokens = sum(one.tokens for one in answered)
    screen.print(
        f"{len(answered):,} of {len(outcomes):,} requests answered in {seconds:.3f} s: "
        f"{len(answered) / seconds:,.1f} requests/s, {tokens / seconds:,.0f} tokens/s"
    )
    if answered:
        latencies_s = [one.latency_s for one in answered]
        p50, p95, p99 = np.quantile(latencies_s, (0.5, 0.95, 0.99)) * 1e3
        screen.print(f"latency: p50 {p50:.1f} ms, p95 {p95:.1f} ms, p99 {p99:.1f} ms")
        counts = histogram(latencies_s)
        labels = [f"to {upper_ms:g} ms" for upper_ms in counts]
        screen.print(bars(labels, [f"{number:,}" for number in counts.values()], list(counts.values())))
    for line in _failures(outcomes):
        screen.print(line, soft_wrap=True)
    return 0 if answered else 1


async def _offer(arguments: argparse.Namespace, texts: Sequence[str]) -> tuple[list[Outcome], float]:
    """Returns what became of the requests, and the seconds from the first to the last answer."""
    options = text_options(arguments)
    requests = islice(_requests(texts, arguments.texts_per_request), arguments.requests)
    # What is refused shall be seen, not sent again.
    async with AsyncClient(**connection(arguments), retry=RetryPolicy(max_attempts=1)) as client:

        async def send(request: Sequence[str]) -> int:
            return int((await client.encode(request, **options)).lengths.sum())

        if not await client.is_serving():
            raise Unavailable(f"the server at {arguments.address} does not take requests")
        started_s = time.perf_counter()
        if arguments.rate:
            outcomes = await open_loop(send, requests, arguments.rate)
        else:
            outcomes = await closed_loop(send, requests, arguments.requesters)
        return outcomes, time.perf_counter() - started_s


def _requests(texts: Sequence[str], size: int) -> Iterator[list[str]]:
    coming = cycle(texts)
    while True:
        yield list(islice(coming, size))


def _failures(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Says how often each kind of error came, and of the first one what it said."""
    kinds: dict[str, list[Exception]] = defaultdict(list)
    for one in outcomes:
        if one.error:
            kinds[type(one.error).__name__].append(one.error)
    for kind, errors in kinds.items():
        yield f"{len(errors):,} {kind}, such as: {errors[0]}"


def _rate(text: str) -> float:
    try:
        rate_s = float(text)
    except ValueError:
        rate_s = math.nan
    if not 0 < rate_s < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of requests a second")
    return rate_s
