"""Three replicas under load: one is killed, one is drained, both start again, and callers count failed calls."""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from random import Random

import numpy as np
from numpy.typing import NDArray

from bench.loads.traces import sentences
from bench.measure import LOG, counters
from bench.processes import LOAD_CORE, SERVER_CORE, pin
from bench.run import Run
from headwaiter_client import AsyncClient, Client, Encoding, HeadwaiterError
from testbed.minilm import bundle
from testbed.server_process import RunningServer, running_server

_FLAGS = ("--provider", "cpu", "--threads", "1")
_REPLICAS = 3
_TEXTS, _TEXTS_PER_CALL = 64, 4
# Callers of each of the two clients.
_CALLERS = 4
# The fp32 tolerance for a sequence in any batch.
_TOLERANCE = 1e-5
# A replica counts as back once it has run this number of further sequences.
_SEQUENCES_WHEN_BACK = 50
_MAX_BACK_S, _POLL_S = 30.0, 0.2

Encode = Callable[[list[str]], Awaitable[Encoding]]


class _Calls:
    """Makes calls until `ended` is set; counts the calls, the errors and the answers with unexpected vectors."""

    def __init__(self, texts: list[str], expected: NDArray[np.float32]) -> None:
        self._texts, self._expected = texts, expected
        self.made = self.failed = self.wrong = 0
        self.ended = False

    async def call_until_ended(self, encode: Encode, seed: int) -> None:
        random = Random(seed)
        while not self.ended:
            first = random.randrange(len(self._texts) - _TEXTS_PER_CALL)
            some = slice(first, first + _TEXTS_PER_CALL)
            self.made += 1
            try:
                pooled = (await encode(self._texts[some])).pooled
            except HeadwaiterError as error:
                print(f"a call failed: {error!r}", flush=True)
                self.failed += 1
            else:
                self.wrong += pooled is None or not np.allclose(pooled, self._expected[some], rtol=0, atol=_TOLERANCE)


def failover(run: Run) -> None:
    """Call three replicas of the real model with both clients while replicas stop and start."""
    # All processes share two cores, because this study measures no speed.
    pin(SERVER_CORE, LOAD_CORE)
    with LOG.with_name("replicas.log").open("wb") as log, ExitStack() as servers:

        def start(address: str = "") -> RunningServer:
            return servers.enter_context(running_server(bundle(), _FLAGS, log=log, address=address))

        asyncio.run(_call_and_stop([start() for _ in range(_REPLICAS)], start, run))


async def _call_and_stop(replicas: Sequence[RunningServer], start: Callable[[str], RunningServer], run: Run) -> None:
    texts, addresses = sentences()[:_TEXTS], [replica.address for replica in replicas]
    started_s, seconds = time.monotonic(), run.sizes.failover_s
    with Client(addresses[0]) as first, Client(addresses) as client:
        expected = first.encode(texts, truncation="right").pooled
        assert expected is not None
        calls = _Calls(texts, expected)

        async def encode_in_thread(some: list[str]) -> Encoding:
            return await asyncio.to_thread(client.encode, some, truncation="right")

        async with AsyncClient(addresses) as async_client, asyncio.TaskGroup() as callers:

            async def encode_in_loop(some: list[str]) -> Encoding:
                return await async_client.encode(some, truncation="right")

            encoders: list[Encode] = [encode_in_thread, encode_in_loop]
            for seed, encode in enumerate(encoders * _CALLERS):
                callers.create_task(calls.call_until_ended(encode, seed))
            answering = await _stop_and_start(replicas, start, seconds / 5)
            await asyncio.sleep(started_s + seconds - time.monotonic())
            calls.ended = True
    took_s = time.monotonic() - started_s
    part = f"three replicas, one killed, one drained, {calls.made:,} calls in {took_s:.0f} s"
    findings = run.figures.findings.of_part(part)
    findings.require("calls that failed", calls.failed, "≤", 0.0)
    findings.require("calls with wrong vectors", calls.wrong, "≤", 0.0)
    findings.require("replicas that answer at the end", answering, "≥", 3.0)


async def _stop_and_start(
    replicas: Sequence[RunningServer], start: Callable[[str], RunningServer], pause_s: float
) -> int:
    """Kill one replica, drain another, restart both; return the number that answers when all do, or after 30 s."""
    killed, drained, *steady = replicas
    for replica, stop_signal in ((killed, signal.SIGKILL), (drained, signal.SIGTERM)):
        await asyncio.sleep(pause_s)
        replica.process.send_signal(stop_signal)
        await asyncio.to_thread(replica.process.wait)
    await asyncio.sleep(pause_s)
    again = [await asyncio.to_thread(start, replica.address) for replica in (killed, drained)]
    enough = {replica: _sequences_run(replica) + _SEQUENCES_WHEN_BACK for replica in (*again, *steady)}
    end_s = time.monotonic() + _MAX_BACK_S
    while True:
        answering = sum(_sequences_run(replica) >= count for replica, count in enough.items())
        if answering == len(enough) or time.monotonic() > end_s:
            return answering
        await asyncio.sleep(_POLL_S)


def _sequences_run(replica: RunningServer) -> float:
    return counters(replica.metrics_url)["headwaiter_batch_sequences_sum"]
