"""A load generator: a closed loop of requesters, or an open loop that sends at given times.

The latency of a request counts from the time at which the request is due. If the generator falls behind its schedule in
an open loop, the latencies therefore include the generator's delay.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np

from headwaiter_client.calls.results import Timings

_SMALLEST_BIN_MS = 1 / 1024

_Request = TypeVar("_Request")


class Reply(NamedTuple):
    """The reply to one request.

    Attributes:
        tokens: number of tokens of the request; 0 if it is unknown.
        error: the error that the request failed with, or None.
        timings: the stages of the request in the server; None if they are unknown.
    """

    tokens: int
    error: Exception | None = None
    timings: Timings | None = None


# Sends a request, whose due time (of `time.perf_counter()`) is the second argument, and returns the reply.
Send: TypeAlias = Callable[[_Request, float], Awaitable[Reply]]


@dataclass(frozen=True)
class Outcome:
    """The times and the result of one request; times are those of `time.perf_counter()`.

    Attributes:
        due_s: time at which the request was due.
        sent_s: time at which the request was sent.
        replied_s: time at which the answer or the error arrived.
        tokens: number of tokens of the request; 0 if it is unknown.
        error: the error that the request failed with, or None.
        timings: the stages of the request in the server; None if they are unknown.
    """

    due_s: float
    sent_s: float
    replied_s: float
    tokens: int
    error: Exception | None
    timings: Timings | None = None

    @property
    def latency_s(self) -> float:
        """Seconds from the due time to the reply."""
        return self.replied_s - self.due_s


@dataclass(frozen=True)
class Load:
    """The outcomes of all requests of one run of the generator.

    Attributes:
        outcomes: one outcome per request.
        started_s: time at which the run started.
        sending_s: seconds during which requests were sent.
        busy: CPU seconds of the generator / `sending_s`; a value near 1 means that the generator limits the load.
    """

    outcomes: list[Outcome]
    started_s: float
    sending_s: float
    busy: float

    @property
    def answered(self) -> list[Outcome]:
        """Outcomes of the requests that succeeded."""
        return [outcome for outcome in self.outcomes if outcome.error is None]

    @property
    def answered_s(self) -> float:
        """Seconds from the start of the run to the last answer."""
        return max(outcome.replied_s for outcome in self.answered) - self.started_s

    @property
    def late_s(self) -> float:
        """99th percentile of the seconds by which requests were sent after their due time."""
        return float(np.quantile([outcome.sent_s - outcome.due_s for outcome in self.outcomes], 0.99))


async def closed_loop(send: Send[_Request], requests: Iterable[_Request], requesters: int) -> Load:
    """Send requests from several requesters, each of which waits for its answer before it sends the next request."""
    remaining = iter(requests)
    outcomes: list[Outcome] = []

    async def send_one_after_another() -> None:
        for request in remaining:
            outcome = await _outcome(send, request, time.perf_counter())
            outcomes.append(outcome)

    started_s, cpu_started_s = time.perf_counter(), time.process_time()
    await asyncio.gather(*(send_one_after_another() for _ in range(requesters)))
    sending_s = time.perf_counter() - started_s
    return Load(outcomes, started_s, sending_s, (time.process_time() - cpu_started_s) / sending_s)


async def open_loop(
    send: Send[_Request], requests: Iterable[_Request], arrivals_s: Iterable[float], grace_s: float | None = None
) -> Load:
    """Send each request at its arrival time, whether earlier requests are answered or not.

    Args:
        send: sends one request; if `grace_s` is given, `send` must return a reply even when it is cancelled.
        requests: the requests; sending ends with the requests or with the arrival times, whichever end first.
        arrivals_s: arrival times in ascending order, in seconds from the start.
        grace_s: seconds after the last request at which unanswered requests are cancelled; None waits for all answers.
    """
    tasks = []
    started_s, cpu_started_s = time.perf_counter(), time.process_time()
    for request, arrival_s in zip(requests, arrivals_s, strict=False):
        due_s = started_s + arrival_s
        await asyncio.sleep(due_s - time.perf_counter())
        tasks.append(asyncio.create_task(_outcome(send, request, due_s)))
    sending_s = time.perf_counter() - started_s
    busy = (time.process_time() - cpu_started_s) / sending_s
    if tasks and grace_s is not None:
        _, unanswered = await asyncio.wait(tasks, timeout=grace_s)
        for task in unanswered:
            task.cancel()
    return Load(await asyncio.gather(*tasks), started_s, sending_s, busy)


def poisson_arrivals(rate_per_s: float, seed: int | None = None) -> Iterator[float]:
    """Yield the arrival times of a Poisson process, in seconds from the start, without end."""
    random = np.random.default_rng(seed)
    arrival_s = 0.0
    while True:
        arrival_s += random.exponential(1 / rate_per_s)
        yield arrival_s


def histogram(latencies_s: Sequence[float]) -> dict[float, int]:
    """Return the number of latencies in each bin. A key is the upper end of a bin: …, ½, 1, 2, 4, … ms."""
    exponents = np.ceil(np.log2(np.maximum(np.multiply(latencies_s, 1e3), _SMALLEST_BIN_MS))).astype(int)
    first = int(exponents.min())
    return {2.0**exponent: int(count) for exponent, count in enumerate(np.bincount(exponents - first), start=first)}


async def _outcome(send: Send[_Request], request: _Request, due_s: float) -> Outcome:
    sent_s = time.perf_counter()
    reply = await send(request, due_s)
    return Outcome(due_s, sent_s, time.perf_counter(), *reply)
