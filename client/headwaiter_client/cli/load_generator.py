"""Offers load: requesters that each wait for their answer, or requests that come when they come."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from headwaiter_client.errors import HeadwaiterError

Send: TypeAlias = Callable[[Sequence[str]], Awaitable[int]]

_SHORTEST_MS = 1 / 1024


@dataclass(frozen=True)
class Outcome:
    """What became of one request.

    Attributes:
        latency_s: from when it was due to its answer.
        tokens: that were encoded.
        error: why there was no answer.
    """

    latency_s: float
    tokens: int
    error: HeadwaiterError | None


async def closed_loop(send: Send, requests: Iterable[Sequence[str]], requesters: int) -> list[Outcome]:
    """Sends requests, so many at a time: each requester waits for its answer before it sends the next.

    Args:
        send: sends a request and returns how many tokens it had.
        requests: what to send.
        requesters: how many there are.
    """
    coming = iter(requests)
    outcomes = []

    async def request_in_turn() -> None:
        for request in coming:
            outcome = await _outcome(send, request, time.perf_counter())
            outcomes.append(outcome)

    await asyncio.gather(*(request_in_turn() for _ in range(requesters)))
    return outcomes


async def open_loop(send: Send, requests: Iterable[Sequence[str]], rate_s: float) -> list[Outcome]:
    """Sends requests at random moments (Poisson), whether the server keeps up or not.

    Args:
        send: sends a request and returns how many tokens it had.
        requests: what to send.
        rate_s: how many a second on average.
    """
    random = np.random.default_rng()
    due_s = time.perf_counter()
    tasks = []
    for request in requests:
        due_s += random.exponential(1 / rate_s)
        await asyncio.sleep(due_s - time.perf_counter())
        tasks.append(asyncio.create_task(_outcome(send, request, due_s)))
    return await asyncio.gather(*tasks)


def histogram(latencies_s: Sequence[float]) -> dict[float, int]:
    """Counts latencies up to each power of two milliseconds, from the first that has any to the last."""
    exponents = np.ceil(np.log2(np.maximum(np.multiply(latencies_s, 1e3), _SHORTEST_MS))).astype(int)
    first = int(exponents.min())
    return {2.0**exponent: int(count) for exponent, count in enumerate(np.bincount(exponents - first), start=first)}


async def _outcome(send: Send, request: Sequence[str], due_s: float) -> Outcome:
    tokens, failure = 0, None
    try:
        tokens = await send(request)
    except HeadwaiterError as error:
        failure = error
    return Outcome(time.perf_counter() - due_s, tokens, failure)
