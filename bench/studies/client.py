"""What our own client makes of a server: its memory on short texts, and throughput on real sentences."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import grpc

from bench.loads.calls import ENCODE
from bench.loads.traces import sentences
from bench.measure import HEADWAITER, LOAD_CORE, Fleet, median_ratio, pin
from bench.run_sizes import Effort
from bench.studies.front_end import NULL
from bench.studies.short_texts import ShortTexts
from headwaiter_client import Client
from headwaiter_proto import encoder_pb2 as pb

_SENTENCES = 5_000
# So the server is never without work, and its batches are full.
_IN_A_REQUEST, _IN_FLIGHT = 64, 8


@dataclass(frozen=True)
class Streaming:
    """What encode_stream takes.

    Attributes:
        short: many short texts before a null model.
        sentences: real ones before the real model.
        client_s: time they take through encode_stream, round by round.
        raw_s: time they take in requests made beforehand whose replies nobody reads, which is the server's own.
    """

    short: ShortTexts
    sentences: int
    client_s: list[float]
    raw_s: list[float]

    @property
    def ratio(self) -> float:
        """Throughput by the server's own."""
        return median_ratio(self.raw_s, self.client_s)


def client(fleet: Fleet, effort: Effort) -> Streaming:
    """Measure memory in a process of its own, then throughput in turns."""
    pin(LOAD_CORE)
    program = [sys.executable, "-m", "bench.studies.short_texts", fleet[NULL].address]
    printed = subprocess.run(program, stdout=subprocess.PIPE, check=True).stdout
    address = fleet[HEADWAITER].address
    # There are fewer; they come again.
    texts = list(islice(cycle(sentences()), _SENTENCES))
    figures = Streaming(ShortTexts(**json.loads(printed)), len(texts), [], [])
    turns: list[tuple[Callable[[str, Sequence[str]], float], list[float]]]
    turns = [(_streamed_s, figures.client_s), (_raw_s, figures.raw_s)]
    for _ in range(effort.rounds):
        # What comes second is not always the same.
        turns.reverse()
        for run_s, seconds in turns:
            seconds.append(run_s(address, texts))
    return figures


def _streamed_s(address: str, texts: Sequence[str]) -> float:
    started_s = time.perf_counter()
    with Client(address) as client:
        for _ in client.encode_stream(iter(texts), truncation="right"):
            pass
    return time.perf_counter() - started_s


def _raw_s(address: str, texts: Sequence[str]) -> float:
    cuts = range(0, len(texts), _IN_A_REQUEST)
    requests = [
        pb.EncodeRequest(texts=pb.Texts(values=texts[cut : cut + _IN_A_REQUEST]), truncation=pb.TRUNCATION_RIGHT)
        for cut in cuts
    ]
    return asyncio.run(_send([request.SerializeToString() for request in requests], address))


async def _send(requests: list[bytes], address: str) -> float:
    waiting = iter(requests)
    async with grpc.aio.insecure_channel(address) as channel:
        await channel.channel_ready()
        send: Any = channel.unary_unary(ENCODE)

        async def send_in_turn() -> None:
            for request in waiting:
                await send(request)

        started_s = time.perf_counter()
        await asyncio.gather(*(send_in_turn() for _ in range(_IN_FLIGHT)))
        return time.perf_counter() - started_s
