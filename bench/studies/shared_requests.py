"""Calls of one text each from one client: with shared requests in turns with requests of their own.

Run it with `python -m bench.studies.shared_requests`. Threads, or tasks of an event loop, of a client on one core call
a server on another core, which has a null model, or all-MiniLM-L6-v2 with `--minilm`. Texts have at most 8 words. The
study prints for each kind and number of callers the texts/s, the CPU microseconds per text of the server and of the
client, and the latency, and the ratio of each to that without shared requests. Flags of the server may follow, such as
`--front-ends 2`.
"""

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from typing import Any, NamedTuple

from bench.loads.traces import sentences
from bench.measure import HEADWAITER, NULL, Fleet, ServerSetup, quantile_ms, server_cpu_s
from bench.processes import LOAD_CORE, pin
from bench.rounds import Rounds
from headwaiter_client import AsyncClient, Client
from testbed.server_process import RunningServer

_CALLERS = (1, 4, 16, 64, 256)
# Longer texts take the server longer to tokenize, with or without shared requests.
_MOST_WORDS = 8
_ROUNDS = 5
# A round without shared requests takes about this long.
_ROUND_S = 2.0


class _Cost(NamedTuple):
    """What one load cost, per text where it says so."""

    texts_per_s: float
    server_us: float
    client_us: float
    p50_ms: float
    p99_ms: float


def main(arguments: list[str]) -> None:
    """Measure, and print a line for each number of callers."""
    pin(LOAD_CORE)
    minilm, flags = "--minilm" in arguments, [each for each in arguments if each != "--minilm"]
    plain = HEADWAITER if minilm else NULL
    setup = ServerSetup(plain.name, program=plain.program, flags=tuple(flags))
    print(f"{setup.name} {' '.join(flags)}: own requests → shared requests, and the median of the ratios")
    with Fleet() as fleet:
        for run in (_tasks, _threads):
            for callers in _CALLERS:
                print(_line(fleet[setup], run, callers), flush=True)


def _line(server: RunningServer, run: Callable[..., list[float]], callers: int) -> str:
    texts = [text for text in sentences() if len(text.split()) <= _MOST_WORDS]
    calls = {share: _calls_of_a_round(server, run, callers, share) for share in (False, True)}
    costs: dict[bool, list[_Cost]] = {False: [], True: []}
    for number in range(_ROUNDS):
        for share in (False, True) if number % 2 else (True, False):
            costs[share].append(_cost(server, run, callers, texts, calls[share], share=share))
    shown = []
    for name in _Cost._fields:
        alone, shared = (Rounds(getattr(each, name) for each in costs[share]) for share in (False, True))
        shown.append(f"{name} {alone:.4g} → {shared:.4g} ({shared / alone:.3f})")
    return f"{callers} {run.__name__[1:]}: " + ", ".join(shown)


def _calls_of_a_round(server: RunningServer, run: Callable[..., list[float]], callers: int, share: bool) -> int:
    few = max(200, 4 * callers)
    cost = _cost(server, run, callers, ["the bread is fresh"], few, share=share)
    return max(few, int(cost.texts_per_s * _ROUND_S))


def _cost(
    server: RunningServer,
    run: Callable[..., list[float]],
    callers: int,
    texts: Sequence[str],
    calls: int,
    *,
    share: bool,
) -> _Cost:
    before_s = sum(server_cpu_s(server))
    own_s, started_s = time.process_time(), time.perf_counter()
    latencies_s = run(server.address, callers, islice(cycle(texts), calls), share)
    took_s, own_s = time.perf_counter() - started_s, time.process_time() - own_s
    server_s = sum(server_cpu_s(server)) - before_s
    return _Cost(
        calls / took_s,
        server_s / calls * 1e6,
        own_s / calls * 1e6,
        quantile_ms(latencies_s, 0.5),
        quantile_ms(latencies_s, 0.99),
    )


def _tasks(address: str, callers: int, texts: Any, share: bool) -> list[float]:
    """Call from tasks of one event loop, and return the latencies."""
    latencies_s: list[float] = []

    async def run() -> None:
        async with AsyncClient(address, share_requests=share) as client:

            async def call() -> None:
                for text in texts:
                    sent_s = time.perf_counter()
                    await client.encode(text, truncation="right")
                    latencies_s.append(time.perf_counter() - sent_s)

            await asyncio.gather(*(call() for _ in range(callers)))

    asyncio.run(run())
    return latencies_s


def _threads(address: str, callers: int, texts: Any, share: bool) -> list[float]:
    """Call from threads, and return the latencies."""
    latencies_s: list[float] = []
    taking = threading.Lock()

    def call() -> None:
        while True:
            with taking:
                text = next(texts, None)
            if text is None:
                return
            sent_s = time.perf_counter()
            client.encode(text, truncation="right")
            latencies_s.append(time.perf_counter() - sent_s)

    with Client(address, share_requests=share) as client:
        threads = [threading.Thread(target=call) for _ in range(callers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return latencies_s


if __name__ == "__main__":
    main(sys.argv[1:])
