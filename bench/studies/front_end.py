"""What the front end costs, and what it does for callers that are slow or go away: all before a model of no time."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from bench.effort import Effort
from bench.loads.calls import ENCODE, ENCODE_STREAM, Calls, stream, unary
from bench.measure import LOAD_CORE, Contender, Fleet, counters, cpu_s, median_ratio, pin
from bench.servers.null import PAUSE_ID
from headwaiter_proto import encoder_pb2 as pb
from testbed.server_process import RunningServer

NULL, ECHO = Contender("null model", program="bench.servers.null"), Contender("echo", program="bench.servers.echo")

_LENGTH_TOKENS, _MANY = 20, 64
_REQUESTERS = 32
_RUN_S = 3.0
_FLEETS_A_ROUND = 2
# No id comes again while it is in flight.
_IDS = 4 * _REQUESTERS
_BYSTANDERS = 4
_STALL_S = 10.0
# The p99 of ten seconds differs from that of the next ten by up to a quarter, with nothing beside: a median of so many
# is good to some 5 %.
_STALLS_A_ROUND = 3
_STILL_S = 0.3
# Some 400 MB of answers.
_UNREAD = 200
_WAITING, _DEADLINE_S = 20, 0.2
_FORGOTTEN = 40
_QUEUED, _RUN = "headwaiter_queue_sequences", "headwaiter_batch_sequences_sum"
_PLANNED = "headwaiter_batches_closed_total"


@dataclass(frozen=True)
class Cost:
    """One kind of call, to Headwaiter before a null model and to a bare echo server of the same message sizes, in turn.

    Attributes:
        kind: of the call.
        sequences: in a request.
        request_bytes: of a message.
        reply_bytes: of a message.
        ours_s: requests a second, round by round.
        ours_us: CPU time of the server, a request.
        echo_s: requests a second of the echo server.
        echo_us: CPU time of the echo server.
    """

    kind: str
    sequences: int
    request_bytes: int
    reply_bytes: int
    ours_s: list[float]
    ours_us: list[float]
    echo_s: list[float]
    echo_us: list[float]

    @property
    def ratio(self) -> float:
        """Requests a second by those of the echo server."""
        return median_ratio(self.ours_s, self.echo_s)


@dataclass(frozen=True)
class Stall:
    """A caller that takes none of its stream's answers for 10 s.

    Attributes:
        p99: of other callers meanwhile, by the mean of before and after; one for each time.
        held_mib: what the server's memory grew by.
        sent: requests of the stream.
        answered: those of them with a good answer once it reads again.
    """

    p99: list[float]
    held_mib: float
    sent: int
    answered: int


@dataclass(frozen=True)
class GivenUp:
    """Requests that are given up while they wait; the largest figures over the rounds.

    Attributes:
        cancelled_ms: from their cancellation until none waits at the server any more, as its metrics show.
        late_ms: the same from their deadline.
        run: sequences of them that ran.
    """

    cancelled_ms: float
    late_ms: float
    run: float


@dataclass(frozen=True)
class FrontEnd:
    """All figures."""

    costs: list[Cost]
    stall: Stall
    given_up: GivenUp


def front_end(fleet: Fleet, effort: Effort) -> FrontEnd:
    """Measure all of it."""
    pin(LOAD_CORE)
    costs = [
        _cost(fleet, effort, "unary", 1),
        _cost(fleet, effort, "unary", _MANY),
        _cost(fleet, effort, "stream", 1),
    ]
    null = fleet[NULL]
    stall = asyncio.run(_stall(null, _STALLS_A_ROUND * effort.rounds))
    return FrontEnd(costs, stall, asyncio.run(_give_up(null, effort.rounds)))


def table(costs: list[Cost]) -> list[str]:
    """Return a table in Markdown."""
    lines = [
        "| calls | request bytes | reply bytes | requests/s | echo's | by echo | sequences/s | server µs | echo's |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for cost in costs:
        ours_s, echo_s, ours_us, echo_us = map(
            statistics.median, (cost.ours_s, cost.echo_s, cost.ours_us, cost.echo_us)
        )
        lines.append(
            f"| {cost.kind}, {cost.sequences} | {cost.request_bytes:,} | {cost.reply_bytes:,} | {ours_s:,.0f} "
            f"| {echo_s:,.0f} | {cost.ratio:.2f} | {ours_s * cost.sequences:,.0f} | {ours_us:.0f} | {echo_us:.0f} |"
        )
    return lines


def _request(sequences: int, request_id: str = "", **fields: Any) -> bytes:
    ids = np.arange(1000, 1000 + _LENGTH_TOKENS, dtype="<i4")
    tokens = pb.TokenSequences(
        dtype=pb.DATA_TYPE_INT32, data=ids.tobytes() * sequences, lengths=[_LENGTH_TOKENS] * sequences
    )
    return pb.EncodeRequest(request_id=request_id, tokens=tokens, **fields).SerializeToString()


def _cost(fleet: Fleet, effort: Effort, kind: str, sequences: int) -> Cost:
    messages = [_request(sequences, f"{number:03}") for number in range(_IDS)]
    method = ENCODE if kind == "unary" else ENCODE_STREAM
    reply_bytes = asyncio.run(_reply_bytes(fleet[NULL].address, kind, messages[0]))
    cost = Cost(kind, sequences, len(messages[0]), reply_bytes, [], [], [], [])
    for _ in range(_FLEETS_A_ROUND * effort.rounds):
        fleet.renew()
        for server, called, rates_s, cpu_us in (
            (fleet[NULL], method, cost.ours_s, cost.ours_us),
            (fleet[ECHO], f"/echo/{kind}-{reply_bytes}", cost.echo_s, cost.echo_us),
        ):
            before_s = cpu_s(server.process.pid)
            calls = asyncio.run(_load(server.address, kind, called, messages))
            rates_s.append(calls.rate_s)
            cpu_us.append((cpu_s(server.process.pid) - before_s) / len(calls.latencies_s) * 1e6)
            if calls.busy > 0.95:
                print(f"{kind} of {sequences}: the load generator was {calls.busy:.0%} busy", flush=True)
    return cost


async def _reply_bytes(address: str, kind: str, message: bytes) -> int:
    async with grpc.aio.insecure_channel(address) as channel:
        if kind == "unary":
            send: Any = channel.unary_unary(ENCODE)
            reply = await send(message)
        else:
            call: Any = channel.stream_stream(ENCODE_STREAM)()
            await call.write(message)
            reply = await call.read()
        return len(reply)


async def _load(address: str, kind: str, method: str, messages: list[bytes]) -> Calls:
    async with grpc.aio.insecure_channel(address) as channel:
        await channel.channel_ready()
        if kind == "unary":
            return await unary(channel, method, messages[0], _REQUESTERS, _RUN_S)
        return await stream(channel, method, messages, _REQUESTERS, _RUN_S)


async def _stall(server: RunningServer, stalls: int) -> Stall:
    alone_ms, beside_ms, held_mib, answered = [], [], 0.0, 0
    async with _channel(server) as others:
        alone_ms.append(await _bystanders_p99_ms(others))
        for _ in range(stalls):
            before_mib = _memory_mib(server)
            async with _channel(server) as channel:
                call: Any = channel.stream_stream(ENCODE_STREAM)()
                writing = asyncio.create_task(_write_all(call))
                await _until_still(server)
                beside_ms.append(await _bystanders_p99_ms(others))
                held_mib = max(held_mib, _memory_mib(server) - before_mib)
                async for raw in call:
                    answered += pb.EncodeStreamResponse.FromString(raw).HasField("response")
                await writing
            alone_ms.append(await _bystanders_p99_ms(others))
    around_ms = [statistics.mean(pair) for pair in pairwise(alone_ms)]
    p99 = [ms / alone for ms, alone in zip(beside_ms, around_ms, strict=True)]
    return Stall(p99, held_mib, stalls * _UNREAD, answered)


async def _bystanders_p99_ms(channel: grpc.aio.Channel) -> float:
    return (await unary(channel, ENCODE, _request(1), _BYSTANDERS, _STALL_S)).p99_ms


def _channel(server: RunningServer) -> grpc.aio.Channel:
    """Return a channel with a connection of its own."""
    return grpc.aio.insecure_channel(server.address, [("grpc.use_local_subchannel_pool", 1)])


async def _write_all(call: Any) -> None:
    for number in range(_UNREAD):
        await call.write(_request(_MANY, str(number), output=pb.OutputOptions(hidden=True)))
    await call.done_writing()


async def _until_still(server: RunningServer) -> None:
    """Return once a server answers nothing more."""
    before = -1.0
    while (answered := (await _metrics(server))["headwaiter_requests_total OK"]) > before:
        before = answered
        await asyncio.sleep(_STILL_S)


async def _give_up(server: RunningServer, rounds: int) -> GivenUp:
    cancelled = [await _trial(server, None) for _ in range(rounds)]
    late = [await _trial(server, _DEADLINE_S) for _ in range(rounds)]
    return GivenUp(
        max(seconds for seconds, _ in cancelled) * 1e3,
        max(seconds for seconds, _ in late) * 1e3,
        max(run for _, run in cancelled + late),
    )


async def _trial(server: RunningServer, timeout_s: float | None) -> tuple[float, float]:
    """Give requests up behind one that keeps the device; return after how long none waited, and how many ran."""
    async with _channel(server) as channel:
        send: Any = channel.unary_unary(ENCODE)
        # By then the server has forgotten how late it was when it was kept before.
        for _ in range(_FORGOTTEN):
            await send(_request(1))
        before = await _metrics(server)
        keeping = asyncio.create_task(_outcome(send(_pause())))
        await _until(server, lambda now: now[_PLANNED] > before[_PLANNED])
        sent_s = time.perf_counter()
        waiting = [asyncio.create_task(_outcome(send(_request(1), timeout=timeout_s))) for _ in range(_WAITING)]
        await _until(server, lambda now: now[_QUEUED] == _WAITING)
        given_up_s = time.perf_counter() if timeout_s is None else sent_s + timeout_s
        if timeout_s is None:
            for each in waiting:
                each.cancel()
        await _until(server, lambda now: now[_QUEUED] == 0)
        seconds = time.perf_counter() - given_up_s
        await asyncio.gather(keeping, *waiting, return_exceptions=True)
    after = await _metrics(server)
    return seconds, after[_RUN] - before[_RUN] - 1


async def _outcome(call: Awaitable[bytes]) -> None:
    with suppress(grpc.aio.AioRpcError):
        await call


def _pause() -> bytes:
    tokens = pb.TokenSequences(dtype=pb.DATA_TYPE_INT32, data=PAUSE_ID.to_bytes(4, "little"), lengths=[1])
    return pb.EncodeRequest(tokens=tokens).SerializeToString()


async def _until(server: RunningServer, happened: Callable[[Mapping[str, float]], bool]) -> None:
    while not happened(await _metrics(server)):
        pass


async def _metrics(server: RunningServer) -> Mapping[str, float]:
    return await asyncio.to_thread(counters, server.metrics_url)


def _memory_mib(server: RunningServer) -> float:
    """Return the memory that a server holds."""
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024
