"""The subcommand `bench`: measure a server under load, and show the time in each stage."""

import argparse
import asyncio
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import cycle, islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from headwaiter_client.aio import AsyncClient
from headwaiter_client.calls.results import STAGES
from headwaiter_client.cli.console import bar_chart, console
from headwaiter_client.cli.load_generator import (
    Load,
    Outcome,
    Reply,
    closed_loop,
    histogram,
    open_loop,
    poisson_arrivals,
)
from headwaiter_client.cli.shared_flags import (
    Commands,
    add_command,
    add_text_flags,
    client_arguments,
    positive_int,
    positive_number,
    text_options,
    with_flag,
)
from headwaiter_client.cli.text_files import read_texts
from headwaiter_client.transport.retries import RetryPolicy
from headwaiter_proto.rules.errors import HeadwaiterError, Unavailable

if TYPE_CHECKING:
    from rich.table import Table

OUTSIDE = "network, gRPC, client"
_SUMS = (
    "The client split requests into calls that ran at the same time: the stages are sums over the calls of a request."
)


def add_to(commands: Commands) -> None:
    """Add the subcommand."""
    summary = "send the texts of a file as requests, and report rates, latencies, stages and errors"
    flags = add_command(commands, "bench", run, summary)
    add_text_flags(flags)
    flags.add_argument("--requests", type=positive_int, default=1000, help="number of requests (default: 1000)")
    flags.add_argument(
        "--texts-per-request",
        type=positive_int,
        default=1,
        help="number of texts in each request; after the last text of FILE, the first follows (default: 1)",
    )
    pace = flags.add_mutually_exclusive_group()
    pace.add_argument(
        "--requesters",
        type=positive_int,
        default=8,
        help="number of requesters, each of which waits for its answer before it sends the next request (default: 8)",
    )
    pace.add_argument(
        "--rate",
        type=partial(positive_number, what="requests per second"),
        help="send this many requests per second at random times, without waiting for answers",
    )


def run(arguments: argparse.Namespace) -> int:
    """Send the requests and print the report; return 1 if no request was answered."""
    screen = console()
    load = asyncio.run(_send_load(arguments, read_texts(arguments).values))
    answered, seconds = load.answered, max(outcome.replied_s for outcome in load.outcomes) - load.started_s
    tokens = sum(outcome.tokens for outcome in answered)
    screen.print(
        f"{len(answered):,} of {len(load.outcomes):,} requests answered in {seconds:.3f} s: "
        f"{len(answered) / seconds:,.1f} requests/s, {tokens / seconds:,.0f} tokens/s"
    )
    if answered:
        latencies_s = [outcome.latency_s for outcome in answered]
        p50, p95, p99 = np.quantile(latencies_s, (0.5, 0.95, 0.99)) * 1e3
        screen.print(f"latency: p50 {p50:.1f} ms, p95 {p95:.1f} ms, p99 {p99:.1f} ms")
        stages_s = stage_seconds(answered)
        screen.print(_stage_table(stages_s))
        if OUTSIDE not in stages_s:
            screen.print(_SUMS, soft_wrap=True)
        counts = histogram(latencies_s)
        labels = [f"up to {upper_ms:g} ms" for upper_ms in counts]
        screen.print(bar_chart(labels, [f"{number:,}" for number in counts.values()], list(counts.values())))
    for line in _error_lines(load.outcomes):
        screen.print(line, soft_wrap=True)
    return 0 if answered else 1


async def _send_load(arguments: argparse.Namespace, texts: Sequence[str]) -> Load:
    """Send the requests, and return their outcomes."""
    options = text_options(arguments)
    requests = islice(_requests(texts, arguments.texts_per_request), arguments.requests)
    # Turn retries off, so that the report shows refused requests.
    async with AsyncClient(
        **client_arguments(arguments), retry=RetryPolicy(max_attempts=1), share_requests=False
    ) as client:

        async def send(request: Sequence[str], _: float) -> Reply:
            try:
                encoding = await client.encode(request, **options)
            except HeadwaiterError as error:
                return Reply(0, error)
            return Reply(int(encoding.lengths.sum()), timings=encoding.timings)

        if not await client.is_serving():
            raise Unavailable(
                f"the server at {arguments.address} does not accept requests: check --address and its log"
            )
        if arguments.rate:
            return await open_loop(send, requests, poisson_arrivals(arguments.rate))
        return await closed_loop(send, requests, arguments.requesters)


def _requests(texts: Sequence[str], size: int) -> Iterator[list[str]]:
    """Yield requests of `size` texts without end; after the last text, the first follows."""
    repeated = cycle(texts)
    while True:
        yield list(islice(repeated, size))


def stage_seconds(answered: Sequence[Outcome]) -> dict[str, NDArray[np.float64]]:
    """Return the seconds that each request spent in each stage, and outside of the server.

    If the client splits a request into several calls, the timings of the request are sums. Sums over calls that ran at
    the same time can exceed the latency, so `OUTSIDE` is then left out.
    """
    timed = [(outcome, outcome.timings) for outcome in answered if outcome.timings]
    stages_s = {stage: np.array([getattr(timings, f"{stage}_s") for _, timings in timed]) for stage in STAGES}
    if all(timings.round_trip_s <= outcome.replied_s - outcome.sent_s for outcome, timings in timed):
        stages_s[OUTSIDE] = np.array([outcome.latency_s - timings.total_s for outcome, timings in timed])
    return stages_s


def _stage_table(stages_s: dict[str, NDArray[np.float64]]) -> "Table":
    """Return the quantiles of each stage, and its share of the sum of all stages."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("stage")
    for heading in ("p50", "p95", "p99", "share of the time"):
        table.add_column(heading, justify="right")
    whole_s = sum(seconds.sum() for seconds in stages_s.values())
    for stage, seconds in stages_s.items():
        quantiles = [f"{quantile * 1e3:.2f} ms" for quantile in np.quantile(seconds, (0.5, 0.95, 0.99))]
        table.add_row(stage, *quantiles, f"{seconds.sum() / whole_s:.1%}")
    return table


def _error_lines(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield one line per error class: the number of its errors, and the message of the first."""
    errors: dict[str, list[Exception]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.error:
            errors[type(outcome.error).__name__].append(outcome.error)
    for kind, same_kind in errors.items():
        yield f"{len(same_kind):,} {kind}, the first: {with_flag(same_kind[0])}"
