"""A caller in a process of its own that sends a correct request every 10 ms, and checks and times every answer.

The process shares no event loop and no interpreter with the load, so only the server can slow its calls down.
Run it with `python -m tests.support.soak.honest_caller HOST:PORT`; each empty line on its standard input starts or
ends a measurement, whose result it prints as JSON. Latencies count from the time at which a call is due.
"""

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count, repeat, takewhile
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from headwaiter_client import AsyncClient, HeadwaiterError, RetryPolicy
from headwaiter_client.cli.load_generator import Reply, open_loop

_INTERVAL_S = 0.01


@dataclass
class Measurement:
    """The calls of one or several measurements.

    Attributes:
        latencies_ms: of the calls that were answered.
        errors: number of calls by the error that ended them.
    """

    latencies_ms: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)

    def add(self, other: "Measurement") -> None:
        """Add the calls of another measurement."""
        self.latencies_ms += other.latencies_ms
        self.errors += other.errors

    @property
    def p99_ms(self) -> float:
        """99th percentile of the latencies."""
        return float(np.quantile(self.latencies_ms, 0.99)) if self.latencies_ms else float("nan")


class HonestCaller:
    """The process, seen from the load."""

    def __init__(self, address: str) -> None:
        command = [sys.executable, "-m", "tests.support.soak.honest_caller", address]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._read()

    @contextmanager
    def measuring(self, into: Measurement) -> Iterator[None]:
        """Send calls during the block, and add them to a measurement."""
        self._toggle()
        yield
        self._toggle()
        latencies_ms, errors = self._read()
        into.add(Measurement(latencies_ms, Counter(errors)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def _toggle(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def _read(self) -> tuple[list[float], dict[str, int]]:
        assert self._process.stdout is not None
        latencies_ms, errors = json.loads(self._process.stdout.readline())
        return latencies_ms, errors


async def _measure(address: str) -> None:
    async with AsyncClient(address, retry=RetryPolicy(max_attempts=1), timeout_s=60) as client:
        takes_tokens = (await client.model()).takes_tokens
        encode: Any = client.encode_tokens if takes_tokens else client.encode_features
        sequence = np.arange(1, 9) if takes_tokens else np.ones((8, 6), np.float32)
        expected = (await encode([sequence])).pooled
        print("[[], {}]", flush=True)

        async def send(values: NDArray[Any], due_s: float) -> Reply:
            try:
                pooled = (await encode([values])).pooled
            except HeadwaiterError as error:
                return Reply(0, error)
            assert pooled is not None
            correct = np.allclose(pooled, expected, rtol=0, atol=1e-5)
            return Reply(0, None if correct else ValueError("the answer is wrong"))

        while await asyncio.to_thread(sys.stdin.readline):
            ended = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
            load = await open_loop(send, repeat(sequence), _arrivals_until(ended))
            errors = Counter(
                f"{type(outcome.error).__name__} ({outcome.error})" for outcome in load.outcomes if outcome.error
            )
            print(json.dumps([[outcome.latency_s * 1e3 for outcome in load.answered], errors]), flush=True)


def _arrivals_until(ended: "asyncio.Task[str]") -> Iterator[float]:
    return takewhile(lambda _: not ended.done(), (number * _INTERVAL_S for number in count()))


if __name__ == "__main__":
    asyncio.run(_measure(sys.argv[1]))
