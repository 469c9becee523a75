"""Calls of one text each that arrive at random times: a client that shares requests in turns with one that does not.

Run it with `python -m bench.studies.shared_requests_open_loop PART…`. The parts, all with a server on one core and the
callers on another:

- device: a model that takes the time of a small model on a GPU and no CPU, at 4,000 arrivals/s.
- lengths: all-MiniLM-L6-v2, texts of 5 to 500 tokens, half of the server's throughput; the latency of short texts.
- deadlines: all-MiniLM-L6-v2, short texts, 120 % of the throughput, deadlines of 500 ms; the answers in time.
- services: all-MiniLM-L6-v2, two services in processes of their own, each with 75 % of the throughput and deadlines of
  1 s, of which one shares requests; the answers that each gets in time.
"""

import asyncio
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import cycle, islice, repeat, takewhile
from multiprocessing import get_context
from random import Random
from typing import NamedTuple

from bench.loads.traces import sentences
from bench.measure import HEADWAITER, Fleet, ServerSetup, quantile_ms
from bench.processes import LOAD_CORE, pin
from headwaiter_client import AsyncClient, HeadwaiterError, RetryPolicy
from headwaiter_client.cli.load_generator import Reply, closed_loop

TIMED = ServerSetup("timed model", program=("bench.servers.modified", "timed"))

_ROUNDS, _ROUND_S = 5, 15.0
_DEVICE_ARRIVALS_PER_S = 4_000
_SHORTEST_TOKENS, _LONGEST_TOKENS, _SHORT_TOKENS = 5, 500, 32
_CAPACITY_CALLERS, _CAPACITY_S = 32, 8.0
_ONCE = RetryPolicy(max_attempts=1)
_PATIENT_S = 30.0


class _Text(NamedTuple):
    """A text, and about the number of its tokens."""

    text: str
    tokens: int


class _Answers(NamedTuple):
    """The latencies of the calls that were answered, those of the short texts, and the names of the errors."""

    latencies_s: list[float]
    short_s: list[float]
    errors: list[str]

    def __str__(self) -> str:
        """Return the figures in one line."""
        return (
            f"{len(self.latencies_s)} answers, p50 {quantile_ms(self.latencies_s, 0.5):.1f} ms, "
            f"p99 {quantile_ms(self.latencies_s, 0.99):.1f} ms, short p50 {quantile_ms(self.short_s, 0.5):.1f} ms, "
            f"p99 {quantile_ms(self.short_s, 0.99):.1f} ms, errors {dict(Counter(self.errors))}"
        )


def main(parts: Sequence[str]) -> None:
    """Measure some parts, and print a line for each round and the ratios."""
    pin(LOAD_CORE)
    measure = {"device": _device, "lengths": _lengths, "deadlines": _deadlines, "services": _services}
    with Fleet() as fleet:
        for part in parts:
            print(part, flush=True)
            measure[part](fleet)


def _device(fleet: Fleet) -> None:
    address, texts = fleet[TIMED].address, _short_texts()
    for share in (False, True):
        print(f"  shares {share}: {_arrive(address, texts, _DEVICE_ARRIVALS_PER_S, _PATIENT_S, 0, share)}")


def _lengths(fleet: Fleet) -> None:
    address, texts = fleet[HEADWAITER].address, _texts_of_all_lengths()
    rate = 0.5 * _texts_per_s(address, texts)
    pairs = _in_turns(address, texts, rate, _PATIENT_S)
    for quantile in (0.5, 0.99):
        ratios = [quantile_ms(shared.short_s, quantile) / quantile_ms(own.short_s, quantile) for own, shared in pairs]
        _show(f"short texts, quantile {quantile}", ratios)


def _deadlines(fleet: Fleet) -> None:
    address, texts = fleet[HEADWAITER].address, _short_texts()
    rate = 1.2 * _texts_per_s(address, texts)
    ratios = [len(shared.latencies_s) / len(own.latencies_s) for own, shared in _in_turns(address, texts, rate, 0.5)]
    _show("answers in time", ratios)


def _services(fleet: Fleet) -> None:
    address, texts, ratios = fleet[HEADWAITER].address, _short_texts(), []
    rate = 0.75 * _texts_per_s(address, texts)
    with ProcessPoolExecutor(2, get_context("spawn")) as services:
        for seed in range(_ROUNDS):
            both = [
                services.submit(_arrive, address, texts, rate, 1.0, 2 * seed + share, bool(share)) for share in (0, 1)
            ]
            own, shared = (future.result() for future in both)
            print(f"  own: {own}\n  shared: {shared}", flush=True)
            ratios.append(len(shared.latencies_s) / len(own.latencies_s))
    _show("answers", ratios)


def _in_turns(address: str, texts: Sequence[_Text], rate_per_s: float, timeout_s: float) -> list[list[_Answers]]:
    """Return the answers without and with shared requests in each round."""
    pairs = []
    for seed in range(_ROUNDS):
        order = (False, True) if seed % 2 else (True, False)
        answers = {share: _arrive(address, texts, rate_per_s, timeout_s, seed, share) for share in order}
        print(f"  own: {answers[False]}\n  shared: {answers[True]}", flush=True)
        pairs.append([answers[False], answers[True]])
    return pairs


def _arrive(
    address: str, texts: Sequence[_Text], rate_per_s: float, timeout_s: float, seed: int, share: bool
) -> _Answers:
    """Make calls at random times, and wait for their ends."""
    answers, random = _Answers([], [], []), Random(seed)

    async def run() -> None:
        tasks = set[asyncio.Task[None]]()
        async with AsyncClient(address, share_requests=share, retry=_ONCE, timeout_s=timeout_s) as client:
            await client.encode(texts[0].text, truncation="right")

            async def call(each: _Text, due_s: float) -> None:
                try:
                    await client.encode(each.text, truncation="right")
                except HeadwaiterError as error:
                    answers.errors.append(type(error).__name__)
                    return
                answers.latencies_s.append(time.perf_counter() - due_s)
                if each.tokens <= _SHORT_TOKENS:
                    answers.short_s.append(answers.latencies_s[-1])

            due_s = time.perf_counter()
            end_s = due_s + _ROUND_S
            while (due_s := due_s + random.expovariate(rate_per_s)) < end_s:
                await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
                task = asyncio.create_task(call(random.choice(texts), due_s))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            while tasks:
                await asyncio.wait(tasks)

    asyncio.run(run())
    return answers


def _texts_per_s(address: str, texts: Sequence[_Text]) -> float:
    """Return the throughput of the server without shared requests."""

    async def run() -> float:
        random, end_s = Random(0), time.perf_counter() + _CAPACITY_S
        async with AsyncClient(address, share_requests=False) as client:

            async def call(each: _Text, _due_s: float) -> Reply:
                await client.encode(each.text, truncation="right")
                return Reply(each.tokens)

            chosen = (random.choice(texts) for _ in takewhile(lambda _: time.perf_counter() < end_s, repeat(None)))
            load = await closed_loop(call, chosen, _CAPACITY_CALLERS)
        return len(load.outcomes) / _CAPACITY_S

    rate = asyncio.run(run())
    print(f"  throughput of {_CAPACITY_CALLERS} callers without shared requests: {rate:.0f} texts/s", flush=True)
    return rate


def _short_texts() -> list[_Text]:
    return [_Text(text, len(text.split())) for text in sentences() if len(text.split()) <= _SHORT_TOKENS]


def _texts_of_all_lengths() -> list[_Text]:
    """Return texts whose lengths are even on a logarithmic scale."""
    words, random = cycle(word for text in sentences() for word in text.split()), Random(0)
    ratio = _LONGEST_TOKENS / _SHORTEST_TOKENS
    counts = [int(_SHORTEST_TOKENS * ratio ** random.random()) for _ in range(500)]
    return [_Text(" ".join(islice(words, count)), count) for count in counts]


def _show(name: str, ratios: Sequence[float]) -> None:
    shown = ", ".join(f"{ratio:.3f}" for ratio in sorted(ratios))
    print(f"  {name}: shared / own {statistics.median(ratios):.3f} of {shown}")


if __name__ == "__main__":
    main(sys.argv[1:])
