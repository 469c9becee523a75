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
from itertools import cycle, takewhile

import grpc

from bench.loads.raw_calls import request, sender
from bench.loads.traces import MEDIAN_30
from bench.measure import logged_server, quantile_ms
from headwaiter_client.cli.load_generator import Load, closed_loop, open_loop, poisson_arrivals
from testbed.minilm import ROOT, bundle

_VOCABULARY = 30_000
_FIRST, _SECOND = "first-s3cret", "second-s3cret"
# Callers by their token.
_BOTH, _FLOOD = {_FIRST: 64, _SECOND: 64}, {_FIRST: 128}
_ARRIVALS_PER_S = 5.0
_FILE = ROOT / "build" / "tenants"


async def _calls(address: str, seconds: float, callers: dict[str, int], arrivals_per_s: float = 0) -> list[Load]:
    """Return the load of each number of callers by their token, and that of the arrivals of the second tenant."""
    requests = cycle([request(ids) for ids in MEDIAN_30.trace(2000, _VOCABULARY).sequences])
    async with grpc.aio.insecure_channel(address) as channel:
        end_s = time.perf_counter() + seconds
        loads = [
            closed_loop(
                sender(channel, token=token), takewhile(lambda _: time.perf_counter() < end_s, requests), number
            )
            for token, number in callers.items()
        ]
        if arrivals_per_s:
            arrivals_s = takewhile(lambda arrival_s: arrival_s < seconds, poisson_arrivals(arrivals_per_s, 0))
            loads.append(open_loop(sender(channel, token=_SECOND), requests, arrivals_s))
        return await asyncio.gather(*loads)


def _show_arrivals(name: str, address: str, seconds: float, callers: dict[str, int]) -> None:
    loads = asyncio.run(_calls(address, seconds, callers, _ARRIVALS_PER_S))
    latencies_s = [outcome.replied_s - outcome.sent_s for outcome in loads[-1].outcomes]
    p50, p99 = (quantile_ms(latencies_s, quantile) for quantile in (0.5, 0.99))
    print(f"{name}: {len(latencies_s)} calls, p50 {p50:.0f} ms, p99 {p99:.0f} ms, {_failed(loads)} failed", flush=True)


def _failed(loads: list[Load]) -> int:
    return sum(len(load.outcomes) - len(load.answered) for load in loads)


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(prog="python -m bench.studies.tenants", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="length of each part (default 60)")
    seconds = parser.parse_args().seconds
    _FILE.parent.mkdir(exist_ok=True)
    _FILE.write_text(f"first: {_FIRST} share=3\nsecond: {_SECOND} share=1\n")
    with logged_server(bundle(), "--provider", "cpu", "--token-file", str(_FILE)) as server:
        loads = asyncio.run(_calls(server.address, seconds, _BOTH))
        first, second = (
            sum(each.tokens for each in load.answered if each.replied_s < load.started_s + seconds) for load in loads
        )
        print(f"tokens {first:,} and {second:,}: ratio {first / second:.2f}, {_failed(loads)} failed", flush=True)
        _show_arrivals("second tenant alone", server.address, seconds, {})
        _show_arrivals("second tenant beside a flood", server.address, seconds, _FLOOD)
    with logged_server(bundle(), "--provider", "cpu") as server:
        _show_arrivals("beside a flood, without tenants", server.address, seconds, _FLOOD)


if __name__ == "__main__":
    main()
