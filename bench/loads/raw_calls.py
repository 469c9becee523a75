"""Sends prepared gRPC messages as bytes and never parses replies, so that the load generator keeps up with a server."""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from itertools import count, cycle, repeat, takewhile
from typing import Any, NamedTuple

import grpc
import numpy as np

from bench.loads.traces import Ids
from headwaiter_client.cli import load_generator
from headwaiter_client.cli.load_generator import Load, Outcome, Reply, Send, poisson_arrivals
from headwaiter_proto import encoder_pb2 as pb

ENCODE = "/headwaiter.v1.Encoder/Encode"
# An open loop cancels unanswered requests this many seconds after its last request.
_GRACE_S = 5.0


class RawRequest(NamedTuple):
    """The bytes of a serialized request, and its number of tokens."""

    message: bytes
    tokens: int = 0


def failed_with(load: Load, code: grpc.StatusCode) -> list[Outcome]:
    """Return the outcomes of the requests that failed with a gRPC code."""
    errors = ((outcome, outcome.error) for outcome in load.outcomes)
    return [outcome for outcome, error in errors if isinstance(error, grpc.aio.AioRpcError) and error.code() is code]


def raise_first_error(load: Load) -> None:
    """Raise the error of the first request that failed, if there is one."""
    for outcome in load.outcomes:
        if outcome.error:
            raise outcome.error


def closed_loop(address: str, sequences: Sequence[Ids], requesters: int) -> Load:
    """Send one sequence per request; each requester waits for its answer before it sends the next request."""
    return send_all(address, list(map(request, sequences)), requesters)


def send_all(address: str, requests: Sequence[RawRequest], requesters: int, method: str = ENCODE) -> Load:
    """Send requests; each requester waits for its answer before it sends the next request."""
    with connected(address, method=method) as send:
        return send(requests, requesters)


@contextmanager
def connected(
    address: str, connections: int = 1, method: str = ENCODE
) -> Iterator[Callable[[Iterable[RawRequest], int], Load]]:
    """Connect to a server, and yield a function that sends requests from a number of requesters, as `send_all`.

    Unlike `send_all`, the function does not connect, so that its time is that of the requests alone.
    """
    with _connected(address, connections, method) as (runner, send):
        yield lambda requests, requesters: runner.run(load_generator.closed_loop(send, requests, requesters))


def closed_loop_beside(
    address: str, sequences: Sequence[Ids], requesters: int, beside: Ids, every_s: float
) -> tuple[Load, Load]:
    """Run a closed loop, and send the sequence `beside` every `every_s` seconds meanwhile; return both loads."""
    requests, other = list(map(request, sequences)), request(beside)

    async def run(send: Send[RawRequest]) -> tuple[Load, Load]:
        ended = False
        arrivals_s = takewhile(lambda _: not ended, (number * every_s for number in count()))
        sending_others = asyncio.create_task(load_generator.open_loop(send, repeat(other), arrivals_s))
        load = await load_generator.closed_loop(send, requests, requesters)
        ended, ended_s = True, time.perf_counter()
        others = await sending_others
        return load, replace(others, outcomes=[outcome for outcome in others.outcomes if outcome.sent_s < ended_s])

    with _connected(address) as (runner, send):
        return runner.run(run(send))


def open_loop(
    address: str,
    sequences: Sequence[Ids],
    rate_per_s: float,
    duration_s: float,
    deadline_s: float | None,
    seed: int,
) -> Load:
    """Send one sequence per request at random times (Poisson arrivals), whether the server keeps up or not.

    The sequences repeat until `duration_s` has passed. The deadline counts from the time at which a request is due.
    """
    requests = list(map(request, sequences))
    arrivals_s = list(takewhile(lambda arrival_s: arrival_s < duration_s, poisson_arrivals(rate_per_s, seed)))
    with _connected(address, deadline_s=deadline_s) as (runner, send):
        return runner.run(load_generator.open_loop(send, cycle(requests), arrivals_s, _GRACE_S))


@contextmanager
def _connected(
    address: str, connections: int = 1, method: str = ENCODE, deadline_s: float | None = None
) -> Iterator[tuple[asyncio.Runner, Send[RawRequest]]]:
    """Open connections, and yield their event loop and a function that sends each request over the next of them."""
    # Otherwise the channels would share a connection.
    options = [("grpc.use_local_subchannel_pool", 1)]

    async def connect() -> Send[RawRequest]:
        senders = []
        for _ in range(connections):
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(address, options))
            await channel.channel_ready()
            senders.append(sender(channel, method, deadline_s))
        turns = cycle(senders)
        return lambda raw, due_s: next(turns)(raw, due_s)

    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        try:
            yield runner, runner.run(connect())
        finally:
            runner.run(stack.aclose())


def sender(
    channel: grpc.aio.Channel, method: str = ENCODE, deadline_s: float | None = None, token: str | None = None
) -> Send[RawRequest]:
    """Return a function that sends raw requests with a deadline that counts from their due time."""
    # Without serializers gRPC takes and returns bytes.
    call: Any = channel.unary_unary(method)
    metadata = None if token is None else (("authorization", f"Bearer {token}"),)

    async def send(request: RawRequest, due_s: float) -> Reply:
        timeout_s = None if deadline_s is None else max(0.0, due_s + deadline_s - time.perf_counter())
        try:
            await call(request.message, timeout=timeout_s, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            return Reply(request.tokens, error)
        except asyncio.CancelledError:
            return Reply(request.tokens, TimeoutError(f"no answer within {_GRACE_S} s after the last request"))
        return Reply(request.tokens)

    return send


def request(*sequences: Ids) -> RawRequest:
    """Return one request of one or several sequences."""
    ids = np.concatenate(sequences).astype("<i4")
    tokens = pb.TokenSequences(dtype=pb.DATA_TYPE_INT32, data=ids.tobytes(), lengths=list(map(len, sequences)))
    return RawRequest(pb.EncodeRequest(tokens=tokens).SerializeToString(), len(ids))
