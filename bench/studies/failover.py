"""Three replicas under load, one killed, one drained, both started again: what callers notice of it."""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from random import Random

import numpy as np
from numpy.typing import NDArray

from bench.effort import Effort
from bench.loads.traces import sentences
from bench.measure import LOAD_CORE, LOG, SERVER_CORE, counters, pin
from headwaiter_client import AsyncClient, Client, Encoding, HeadwaiterError
from testbed.minilm import bundle
from testbed.server_process import RunningServer, running_server

_FLAGS = ("--provider", "cpu", "--threads", "1", "--cache-dir", "")
_REPLICAS = 3
_TEXTS, _IN_A_CALL = 64, 4
# Of each of the two clients.
_CALLERS = 4
# What is promised of fp32, in whatever batch a sequence runs.
_TOLERANCE = 1e-5
# A replica answers again once it has run so many sequences more.
_AGAIN = 50
_BACK_S, _LOOK_EVERY_S = 30.0, 0.2

Encode = Callable[[list[str]], Awaitable[Encoding]]


@dataclass(frozen=True)
class Failover:
    """What callers of three replicas noticed.

    Attributes:
        seconds: how long they called.
        calls: of all callers.
        failed: calls that raised an error.
        wrong: calls with another answer than the first replica gave before.
        answering: replicas that answer in the end.
    """

    seconds: float
    calls: int
    failed: int
    wrong: int
    answering: int


class _Calls:
    """Counts the calls of callers that go on until they are told to end."""

    def __init__(self, texts: list[str], vectors: NDArray[np.float32]) -> None:
        self._texts, self._vectors = texts, vectors
        self.made = self.failed = self.wrong = 0
        self.ended = False

    async def go_on(self, encode: Encode, seed: int) -> None:
        """Encode texts, some at a time."""
        random = Random(seed)
        while not self.ended:
            first = random.randrange(len(self._texts) - _IN_A_CALL)
            some = slice(first, first + _IN_A_CALL)
            self.made += 1
            try:
                pooled = (await encode(self._texts[some])).pooled
            except HeadwaiterError as error:
                print(f"a call failed: {error!r}", flush=True)
                self.failed += 1
            else:
                self.wrong += pooled is None or not np.allclose(pooled, self._vectors[some], rtol=0, atol=_TOLERANCE)


def failover(effort: Effort) -> Failover:
    """Call three replicas of the real model with both clients while replicas stop and start."""
    # Three servers and what is started beside them: nothing here is a matter of speed.
    pin(SERVER_CORE, LOAD_CORE)
    with LOG.with_name("replicas.log").open("wb") as log, ExitStack() as servers:

        def start(address: str = "") -> RunningServer:
            return servers.enter_context(running_server(bundle(), _FLAGS, log=log, address=address))

        return asyncio.run(_failover([start() for _ in range(_REPLICAS)], start, effort.failover_s))


async def _failover(
    replicas: Sequence[RunningServer], start: Callable[[str], RunningServer], seconds: float
) -> Failover:
    texts, addresses = sentences()[:_TEXTS], [replica.address for replica in replicas]
    with Client(addresses[0]) as client:
        vectors = client.encode(texts, truncation="right").pooled
    assert vectors is not None
    calls = _Calls(texts, vectors)
    started_s = time.monotonic()
    with Client(addresses) as client:

        async def encode_in_thread(some: list[str]) -> Encoding:
            return await asyncio.to_thread(client.encode, some, truncation="right")

        async with AsyncClient(addresses) as async_client, asyncio.TaskGroup() as callers:
            encoders: list[Encode] = [encode_in_thread, partial(async_client.encode, truncation="right")]
            for seed, encode in enumerate(encoders * _CALLERS):
                callers.create_task(calls.go_on(encode, seed))
            answering = await _stop_and_start(replicas, start, seconds / 5)
            await asyncio.sleep(started_s + seconds - time.monotonic())
            calls.ended = True
    return Failover(time.monotonic() - started_s, calls.made, calls.failed, calls.wrong, answering)


async def _stop_and_start(
    replicas: Sequence[RunningServer], start: Callable[[str], RunningServer], pause_s: float
) -> int:
    """Kill one, drain one, start both again, and return how many answer then."""
    killed, drained, *steady = replicas
    for replica, how in ((killed, signal.SIGKILL), (drained, signal.SIGTERM)):
        await asyncio.sleep(pause_s)
        replica.process.send_signal(how)
        await asyncio.to_thread(replica.process.wait)
    await asyncio.sleep(pause_s)
    again = [await asyncio.to_thread(start, replica.address) for replica in (killed, drained)]
    return await _answering([*again, *steady])


async def _answering(replicas: Sequence[RunningServer]) -> int:
    """Return how many replicas answer, once all do or they had time enough."""
    end_s = time.monotonic() + _BACK_S
    before = [_answered(replica) for replica in replicas]
    while True:
        answer = [_answered(replica) >= count + _AGAIN for replica, count in zip(replicas, before, strict=True)]
        if all(answer) or time.monotonic() > end_s:
            return sum(answer)
        await asyncio.sleep(_LOOK_EVERY_S)


def _answered(replica: RunningServer) -> float:
    return counters(replica.metrics_url)["headwaiter_batch_sequences_sum"]
