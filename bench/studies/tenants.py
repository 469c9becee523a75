"""Two tenants on one connection: the ratio of their tokens, and what a flood of one costs the other.

    python -m bench.studies.tenants [--seconds N]

all-MiniLM-L6-v2 on a CPU, and the lengths of the first trace. The tenants have shares of 3 and 1. First, 64 callers of
each wait for their answers, so that sequences of both tenants always wait. Then one caller of the second tenant sends
five texts a second: alone; beside 128 callers of the first tenant; and beside the same callers in a server that knows
no tenants.
"""

import argparse
import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from random import Random

import grpc
import numpy as np

from bench.loads.raw_calls import ENCODE, RawRequest, request
from bench.loads.traces import MEDIAN_30
from bench.measure import LOG
from testbed.minilm import ROOT, bundle
from testbed.server_process import RunningServer, running_server

_VOCABULARY = 30_000
_CALLERS, _FLOOD, _ARRIVALS_PER_S = 64, 128, 5
_TOKENS = {"first": "first-s3cret", "second": "second-s3cret"}
_FILE = ROOT / "build" / "tenants"


class Load:
    """Calls of both tenants on one connection, until a time."""

    def __init__(self, channel: grpc.aio.Channel, end_s: float) -> None:
        self.tokens = dict.fromkeys(_TOKENS, 0)
        self.failed = 0
        self.latencies_s: list[float] = []
        self._call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(ENCODE)
        self._end_s = end_s
        self._requests = cycle([request(ids) for ids in MEDIAN_30.trace(2000, _VOCABULARY).sequences])

    async def _send(self, tenant: str, sent: RawRequest) -> None:
        try:
            await self._call(sent.message, metadata=(("authorization", f"Bearer {_TOKENS[tenant]}"),))
        except grpc.aio.AioRpcError:
            self.failed += 1
        else:
            self.tokens[tenant] += sent.tokens if time.monotonic() < self._end_s else 0

    async def wait_for_answers(self, tenant: str) -> None:
        """Send requests, each after the answer to the one before."""
        while time.monotonic() < self._end_s:
            await self._send(tenant, next(self._requests))

    async def arrive(self, tenant: str) -> None:
        """Send requests at random times, and note their latencies."""

        async def timed(sent: RawRequest) -> None:
            sent_s = time.monotonic()
            await self._send(tenant, sent)
            self.latencies_s.append(time.monotonic() - sent_s)

        random, sending = Random(0), list[asyncio.Task[None]]()
        while time.monotonic() < self._end_s:
            sending.append(asyncio.create_task(timed(next(self._requests))))
            await asyncio.sleep(random.expovariate(_ARRIVALS_PER_S))
        await asyncio.gather(*sending)


async def _both_wait(address: str, seconds: float) -> Load:
    async with grpc.aio.insecure_channel(address) as channel:
        load = Load(channel, time.monotonic() + seconds)
        await asyncio.gather(*(load.wait_for_answers(tenant) for tenant in _TOKENS for _ in range(_CALLERS)))
    return load


async def _beside_flood(address: str, seconds: float, callers: int) -> Load:
    async with grpc.aio.insecure_channel(address) as channel:
        load = Load(channel, time.monotonic() + seconds)
        await asyncio.gather(load.arrive("second"), *(load.wait_for_answers("first") for _ in range(callers)))
    return load


@contextmanager
def _serving(*flags: str) -> Iterator[RunningServer]:
    with LOG.open("ab") as log, running_server(bundle(), ["--provider", "cpu", *flags], log=log) as server:
        yield server


def _show(name: str, load: Load) -> None:
    p50, p99 = (1e3 * float(np.quantile(load.latencies_s, quantile)) for quantile in (0.5, 0.99))
    print(
        f"{name}: {len(load.latencies_s)} calls, p50 {p50:.0f} ms, p99 {p99:.0f} ms, {load.failed} failed", flush=True
    )


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(prog="python -m bench.studies.tenants", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="length of each part (default 60)")
    seconds = parser.parse_args().seconds
    _FILE.write_text("first: first-s3cret share=3\nsecond: second-s3cret share=1\n")
    with _serving("--token-file", str(_FILE)) as server:
        load = asyncio.run(_both_wait(server.address, seconds))
        first, second = load.tokens.values()
        print(f"tokens {first:,} and {second:,}: ratio {first / second:.2f}, {load.failed} failed", flush=True)
        _show("second tenant alone", asyncio.run(_beside_flood(server.address, seconds, 0)))
        _show("second tenant beside a flood", asyncio.run(_beside_flood(server.address, seconds, _FLOOD)))
    with _serving() as server:
        _show("beside a flood, without tenants", asyncio.run(_beside_flood(server.address, seconds, _FLOOD)))


if __name__ == "__main__":
    main()
