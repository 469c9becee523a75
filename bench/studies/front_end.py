"""The gRPC front end with a null model: its cost, a stream that is not read, and requests that are given up."""

import asyncio
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import grpc
import numpy as np

from bench.findings import Findings
from bench.loads.raw_calls import ENCODE, ENCODE_STREAM, repeat_stream, repeat_unary, request
from bench.measure import MINIMAL, Fleet, ServerSetup, counters
from bench.processes import LOAD_CORE, cpu_s, memory_mib, pin
from bench.rounds import Rounds
from bench.run import Run, RunSizes
from bench.servers.modified import PAUSE_ID
from headwaiter_client.cli.load_generator import Load
from headwaiter_proto import encoder_pb2 as pb
from testbed.server_process import RunningServer

NULL = ServerSetup("null model", program=("bench.servers.modified", "null"))

_LENGTH_TOKENS, _SEQUENCES_PER_LARGE_REQUEST = 20, 64
_REQUESTERS = 32
_RUN_S = 3.0
_FLEETS_PER_ROUND = 2
# Enough request ids that no id is in flight twice.
_REQUEST_IDS = 4 * _REQUESTERS
_OTHER_REQUESTERS = 4
_UNREAD_S = 10.0
# Without any other load, the p99 latency of 10 s differs from that of the next 10 s by up to a quarter. The median over
# this number of trials is accurate to about 5 %.
_UNREAD_TRIALS_PER_ROUND = 3
_POLL_S = 0.3
# The answers to these requests are about 400 MB.
_UNREAD_REQUESTS = 200
_ABANDONED_REQUESTS, _DEADLINE_S = 20, 0.2
# After this number of requests, the learnt cost no longer depends on the last pause.
_REQUESTS_AFTER_PAUSE = 40
_QUEUED, _SEQUENCES_RUN = "headwaiter_queue_sequences", "headwaiter_batch_sequences_sum"
_PLANNED = "headwaiter_batches_closed_total"


@dataclass(frozen=True)
class CallCost:
    """Rates and CPU times of one kind of call, to Headwaiter with a null model and to an echo server.

    Both get messages of the same sizes. `kind` is "unary" or "stream". CPU times are microseconds of the server.
    """

    kind: str
    sequences: int
    request_bytes: int
    reply_bytes: int
    requests_per_s: Rounds
    request_cpu_us: Rounds
    echo_requests_per_s: Rounds
    echo_request_cpu_us: Rounds

    @property
    def calls(self) -> str:
        """Name in the table."""
        return f"{self.kind}, {self.sequences} sequence{'s' if self.sequences > 1 else ''} per request"

    @property
    def sequences_per_s(self) -> float:
        """Sequences per second."""
        return float(self.requests_per_s) * self.sequences

    @property
    def ratio(self) -> Rounds:
        """Headwaiter's requests per second / the echo server's."""
        return self.requests_per_s / self.echo_requests_per_s


def front_end(run: Run) -> list[CallCost]:
    """Measure the costs of calls, then a stream that the caller does not read, then requests that are given up."""
    pin(LOAD_CORE)
    findings = run.figures.findings.of_part("front end, null model")
    one, many, stream = (
        _call_cost(run.fleet, run.sizes, kind, sequences)
        for kind, sequences in (("unary", 1), ("unary", _SEQUENCES_PER_LARGE_REQUEST), ("stream", 1))
    )
    findings.require("requests/s with one sequence per request: Headwaiter / echo server", one.ratio, "≥", 0.5)
    sequences_ratio = float(many.requests_per_s / one.requests_per_s) * many.sequences
    name = f"sequences/s: {many.sequences} sequences per request / 1 sequence per request"
    findings.require(name, sequences_ratio, "≥", 10.0)
    null = run.fleet[NULL]
    trials = _UNREAD_TRIALS_PER_ROUND * run.sizes.rounds
    asyncio.run(_unread_stream(null, trials, findings.of_part("a caller that does not read its stream, null model")))
    findings = findings.of_part("cancelled and expired requests, null model")
    asyncio.run(_abandoned_requests(null, run.sizes.rounds, findings))
    return [one, many, stream]


def _request(sequences: int, **fields: Any) -> bytes:
    ids = np.arange(1000, 1000 + _LENGTH_TOKENS)
    return request(*[ids] * sequences, **fields).message


def _call_cost(fleet: Fleet, sizes: RunSizes, kind: str, sequences: int) -> CallCost:
    messages = [_request(sequences, request_id=f"{number:03}") for number in range(_REQUEST_IDS)]
    method = ENCODE if kind == "unary" else ENCODE_STREAM
    reply_bytes = asyncio.run(_reply_bytes(fleet[NULL].address, kind, messages[0]))
    cost = CallCost(kind, sequences, len(messages[0]), reply_bytes, Rounds(), Rounds(), Rounds(), Rounds())
    for _ in range(_FLEETS_PER_ROUND * sizes.rounds):
        fleet.stop_all()
        for server, called, rates_per_s, cpu_us in (
            (fleet[NULL], method, cost.requests_per_s, cost.request_cpu_us),
            (fleet[MINIMAL], f"/echo/{kind}-{reply_bytes}", cost.echo_requests_per_s, cost.echo_request_cpu_us),
        ):
            before_s = cpu_s(server.process.pid)
            load = asyncio.run(_send_load(server.address, kind, called, messages))
            requests = len(load.outcomes)
            rates_per_s.append(requests / load.sending_s)
            cpu_us.append((cpu_s(server.process.pid) - before_s) / requests * 1e6)
            if load.busy > 0.95:
                print(f"{kind} of {sequences}: the load generator was {load.busy:.0%} busy", flush=True)
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


async def _send_load(address: str, kind: str, method: str, messages: list[bytes]) -> Load:
    async with grpc.aio.insecure_channel(address) as channel:
        await channel.channel_ready()
        if kind == "unary":
            return await repeat_unary(channel, method, messages[0], _REQUESTERS, _RUN_S)
        return await repeat_stream(channel, method, messages, _REQUESTERS, _RUN_S)


async def _unread_stream(server: RunningServer, trials: int, findings: Findings) -> None:
    """Let a caller read no answers for 10 s, and measure other callers meanwhile, before and after."""
    unread_ms, held_mib, answered = Rounds(), 0.0, 0
    async with _own_channel(server) as others:
        without_ms = [await _p99_ms(others)]
        for _ in range(trials):
            before_mib = memory_mib("VmRSS", server.process.pid)
            async with _own_channel(server) as channel:
                call: Any = channel.stream_stream(ENCODE_STREAM)()
                writing = asyncio.create_task(_write_all(call))
                await _wait_until_no_more_answers(server)
                unread_ms.append(await _p99_ms(others))
                held_mib = max(held_mib, memory_mib("VmRSS", server.process.pid) - before_mib)
                async for raw in call:
                    answered += pb.EncodeStreamResponse.FromString(raw).HasField("response")
                await writing
            without_ms.append(await _p99_ms(others))
    around_ms = Rounds(statistics.mean(pair) for pair in pairwise(without_ms))
    findings.require("p99 of other callers: with / without the unread stream", unread_ms / around_ms, "≤", 1.1)
    findings.require("memory that the server holds, MiB", held_mib, "≤", 128.0)
    answered_share = answered / (trials * _UNREAD_REQUESTS)
    findings.require("once the caller reads again: answers / requests", answered_share, "≥", 1.0)


async def _p99_ms(channel: grpc.aio.Channel) -> float:
    """Return the p99 latency of a few requesters that send one sequence at a time for 10 s."""
    load = await repeat_unary(channel, ENCODE, _request(1), _OTHER_REQUESTERS, _UNREAD_S)
    return float(np.quantile([outcome.latency_s for outcome in load.outcomes], 0.99)) * 1e3


def _own_channel(server: RunningServer) -> grpc.aio.Channel:
    """Return a channel that shares its connection with no other channel."""
    return grpc.aio.insecure_channel(server.address, [("grpc.use_local_subchannel_pool", 1)])


async def _write_all(call: Any) -> None:
    for number in range(_UNREAD_REQUESTS):
        fields: Any = {"request_id": str(number), "output": pb.OutputOptions(hidden=True)}
        await call.write(_request(_SEQUENCES_PER_LARGE_REQUEST, **fields))
    await call.done_writing()


async def _wait_until_no_more_answers(server: RunningServer) -> None:
    before = -1.0
    while (answered := (await _metrics(server))["headwaiter_requests_total OK"]) > before:
        before = answered
        await asyncio.sleep(_POLL_S)


async def _abandoned_requests(server: RunningServer, rounds: int, findings: Findings) -> None:
    """Give up requests while they wait; report the largest figure of all rounds."""
    cancelled = [await _abandon(server, None) for _ in range(rounds)]
    expired = [await _abandon(server, _DEADLINE_S) for _ in range(rounds)]
    for reason, trials in (("a cancellation", cancelled), ("a deadline", expired)):
        findings.require(f"time from {reason} until the queue is empty, ms", max(trials)[0] * 1e3, "≤", 50.0)
    findings.require("sequences that ran nevertheless", max(ran for _, ran in cancelled + expired), "≤", 0.0)


async def _abandon(server: RunningServer, timeout_s: float | None) -> tuple[float, float]:
    """Give up requests that wait behind a long batch, by cancelling them or with a deadline.

    Returns:
        The seconds from the cancellation or the deadline until no request waits, and the number of their sequences
        that ran.
    """
    async with _own_channel(server) as channel:
        send: Any = channel.unary_unary(ENCODE)
        for _ in range(_REQUESTS_AFTER_PAUSE):
            await send(_request(1))
        before = await _metrics(server)
        pausing = send(request(np.array([PAUSE_ID])).message)
        await _wait_until(server, lambda now: now[_PLANNED] > before[_PLANNED])
        sent_s = time.perf_counter()
        calls = [send(_request(1), timeout=timeout_s) for _ in range(_ABANDONED_REQUESTS)]
        await _wait_until(server, lambda now: now[_QUEUED] == _ABANDONED_REQUESTS)
        given_up_s = time.perf_counter() if timeout_s is None else sent_s + timeout_s
        if timeout_s is None:
            for call in calls:
                call.cancel()
        await _wait_until(server, lambda now: now[_QUEUED] == 0)
        seconds = time.perf_counter() - given_up_s
        await asyncio.gather(pausing, *calls, return_exceptions=True)
    after = await _metrics(server)
    return seconds, after[_SEQUENCES_RUN] - before[_SEQUENCES_RUN] - 1


async def _wait_until(server: RunningServer, condition: Callable[[Mapping[str, float]], bool]) -> None:
    while not condition(await _metrics(server)):
        pass


async def _metrics(server: RunningServer) -> Mapping[str, float]:
    return await asyncio.to_thread(counters, server.metrics_url)
