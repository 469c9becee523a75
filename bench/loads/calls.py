"""Makes calls of raw messages, one after the other, so many at a time, and leaves the replies unread."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import grpc
import numpy as np

ENCODE, ENCODE_STREAM = "/headwaiter.v1.Encoder/Encode", "/headwaiter.v1.Encoder/EncodeStream"

Work = Callable[[grpc.aio.Channel], Coroutine[Any, Any, list[float]]]


@dataclass(frozen=True)
class Calls:
    """What became of calls, all answered well.

    Attributes:
        latencies_s: of each.
        seconds: of all together.
        busy: share of a core that the generator took.
    """

    latencies_s: list[float]
    seconds: float
    busy: float

    @property
    def rate_s(self) -> float:
        """Calls a second."""
        return len(self.latencies_s) / self.seconds

    @property
    def p99_ms(self) -> float:
        """The latency that one in a hundred exceeds."""
        return float(np.quantile(self.latencies_s, 0.99)) * 1e3


async def unary(channel: grpc.aio.Channel, method: str, message: bytes, requesters: int, seconds: float) -> Calls:
    """Have so many requesters send a message again and again, each when it has its answer."""
    send: Any = channel.unary_unary(method)
    latencies_s: list[float] = []

    async def request_in_turn(until_s: float) -> None:
        while (sent_s := time.perf_counter()) < until_s:
            await send(message)
            latencies_s.append(time.perf_counter() - sent_s)

    started_s, cpu_s = time.perf_counter(), time.process_time()
    await asyncio.gather(*(request_in_turn(started_s + seconds) for _ in range(requesters)))
    took_s = time.perf_counter() - started_s
    return Calls(latencies_s, took_s, (time.process_time() - cpu_s) / took_s)


async def stream(
    channel: grpc.aio.Channel, method: str, messages: Sequence[bytes], in_flight: int, seconds: float
) -> Calls:
    """Send messages on one stream, over and over, so many ahead of the answers; latencies are between answers."""
    call: Any = channel.stream_stream(method)()
    coming = cycle(messages)
    started_s, cpu_s = time.perf_counter(), time.process_time()
    for _ in range(in_flight):
        await call.write(next(coming))
    moments_s = [started_s]
    while moments_s[-1] < started_s + seconds:
        await call.read()
        moments_s.append(time.perf_counter())
        await call.write(next(coming))
    await call.done_writing()
    for _ in range(in_flight):
        await call.read()
        moments_s.append(time.perf_counter())
    took_s = moments_s[-1] - started_s
    return Calls(np.diff(moments_s).tolist(), took_s, (time.process_time() - cpu_s) / took_s)
