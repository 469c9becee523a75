"""Offers load: requesters that each wait for their answer, or requests that come when they come (Poisson).

One asyncio process that sends bytes made beforehand and does not read the replies, so that it keeps up with the server.
"""

import asyncio
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import grpc
import numpy as np
from numpy.typing import NDArray

from headwaiter_proto import encoder_pb2 as pb

Ids = NDArray[np.int64]

_ENCODE = "/headwaiter.v1.Encoder/Encode"
# How long answers may come after the last request was sent; later ones are given up.
_GRACE_S = 5.0
_GIVEN_UP = "GIVEN_UP"


@dataclass(frozen=True)
class Request:
    """What became of one request; times are on one clock.

    Attributes:
        tokens: of its sequence.
        due_s: when it should be sent; latency counts from here.
        sent_s: when it was.
        replied_s: when the answer or the error came.
        outcome: name of its gRPC status, or GIVEN_UP.
    """

    tokens: int
    due_s: float
    sent_s: float
    replied_s: float
    outcome: str

    @property
    def latency_s(self) -> float:
        """From when it should have been sent to its answer."""
        return self.replied_s - self.due_s


@dataclass(frozen=True)
class Load:
    """What the requesters saw.

    Attributes:
        requests: in the order they were due.
        started_s: when the load began.
        sending_s: how long requests were sent.
        busy: share of a core that the generator took; near 1, it measures itself.
        beside: what became of the requests that are no part of the load.
    """

    requests: list[Request]
    started_s: float
    sending_s: float
    busy: float
    beside: list[Request] = field(default_factory=list)

    @property
    def answered(self) -> list[Request]:
        """Those that were answered well."""
        return [request for request in self.requests if request.outcome == "OK"]

    @property
    def refused(self) -> list[Request]:
        """Those that the server had no capacity for."""
        return [request for request in self.requests if request.outcome == "RESOURCE_EXHAUSTED"]

    @property
    def seconds(self) -> float:
        """From the beginning to the last answer."""
        return max(request.replied_s for request in self.answered) - self.started_s

    @property
    def late_s(self) -> float:
        """By how much the generator was late at the 99th percentile."""
        return float(np.quantile([request.sent_s - request.due_s for request in self.requests], 0.99))


class _Send(Protocol):
    def __call__(self, request: bytes, *, timeout: float | None) -> Awaitable[bytes]: ...


def closed_loop(
    address: str, sequences: Sequence[Ids], requesters: int, beside: Ids | None = None, beside_s: float = 0.0
) -> Load:
    """Send every sequence as a request of its own, so many at a time.

    Args:
        address: of the server.
        sequences: to send.
        requesters: how many there are; each waits for its answer.
        beside: what is sent meanwhile, and is no part of the load.
        beside_s: seconds from one of these to the next.
    """
    return asyncio.run(_closed_loop(address, sequences, requesters, beside, beside_s))


def open_loop(
    address: str, sequences: Sequence[Ids], rate_s: float, duration_s: float, deadline_s: float | None, seed: int = 0
) -> Load:
    """Send requests at random moments, so many a second on average, whether the server keeps up or not.

    Args:
        address: of the server.
        sequences: taken in turn, again from the first after the last.
        rate_s: requests a second; the time between two is exponentially distributed.
        duration_s: how long to send.
        deadline_s: of each request, counted from when it was due.
        seed: of the moments.
    """
    gaps_s = np.random.default_rng(seed).exponential(1 / rate_s, int(2 * rate_s * duration_s) + 100)
    moments_s = np.cumsum(gaps_s)
    return asyncio.run(_open_loop(address, sequences, moments_s[moments_s < duration_s].tolist(), deadline_s))


async def _closed_loop(
    address: str, sequences: Sequence[Ids], requesters: int, beside: Ids | None, beside_s: float
) -> Load:
    messages = [(message(ids), len(ids)) for ids in sequences]
    coming = iter(messages)
    done: list[Request] = []

    async def request_in_turn(send: _Send) -> None:
        for raw, tokens in coming:
            done.append(await _request(send, raw, tokens, time.perf_counter(), None))

    asked: list[asyncio.Task[Request]] = []

    async def request_beside(send: _Send, ids: Ids) -> None:
        while True:
            asked.append(asyncio.create_task(_request(send, message(ids), len(ids), time.perf_counter(), None)))
            await asyncio.sleep(beside_s)

    async with grpc.aio.insecure_channel(address) as channel:
        send = await _connected(channel)
        started_s, cpu_s = time.perf_counter(), time.process_time()
        disturbing = None if beside is None else asyncio.create_task(request_beside(send, beside))
        await asyncio.gather(*(request_in_turn(send) for _ in range(requesters)))
        seconds = time.perf_counter() - started_s
        if disturbing:
            disturbing.cancel()
        others = list(await asyncio.gather(*asked))
        return Load(done, started_s, seconds, (time.process_time() - cpu_s) / seconds, others)


async def _open_loop(address: str, sequences: Sequence[Ids], moments_s: list[float], deadline_s: float | None) -> Load:
    messages = [(message(ids), len(ids)) for ids in sequences]
    async with grpc.aio.insecure_channel(address) as channel:
        send = await _connected(channel)
        tasks = []
        started_s, cpu_s = time.perf_counter(), time.process_time()
        for number, moment_s in enumerate(moments_s):
            await asyncio.sleep(max(0.0, started_s + moment_s - time.perf_counter()))
            raw, tokens = messages[number % len(messages)]
            tasks.append(asyncio.create_task(_request(send, raw, tokens, started_s + moment_s, deadline_s)))
        sending_s = time.perf_counter() - started_s
        busy = (time.process_time() - cpu_s) / sending_s
        _, unanswered = await asyncio.wait(tasks, timeout=_GRACE_S)
        for task in unanswered:
            task.cancel()
        return Load(list(await asyncio.gather(*tasks)), started_s, sending_s, busy)


async def _connected(channel: grpc.aio.Channel) -> _Send:
    await channel.channel_ready()
    # Without serializers: bytes in, bytes out.
    send: _Send = channel.unary_unary(_ENCODE)
    return send


async def _request(send: _Send, raw: bytes, tokens: int, due_s: float, deadline_s: float | None) -> Request:
    sent_s = time.perf_counter()
    try:
        await send(raw, timeout=None if deadline_s is None else max(0.0, due_s + deadline_s - sent_s))
        outcome = "OK"
    except grpc.aio.AioRpcError as error:
        outcome = error.code().name
    except asyncio.CancelledError:
        outcome = _GIVEN_UP
    return Request(tokens, due_s, sent_s, time.perf_counter(), outcome)


def message(ids: Ids) -> bytes:
    """Return a request of one sequence."""
    tokens = pb.TokenSequences(dtype=pb.DATA_TYPE_INT32, data=ids.astype("<i4").tobytes(), lengths=[len(ids)])
    return pb.EncodeRequest(tokens=tokens).SerializeToString()
