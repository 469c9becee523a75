"""The cost of the client: its memory on short texts, and its throughput on real sentences."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

import grpc

from bench.loads.raw_calls import RawRequest, raise_first_error, sender
from bench.loads.traces import sentences
from bench.measure import HEADWAITER, Fleet, median_ratio
from bench.processes import LOAD_CORE, pin
from bench.run_sizes import RunSizes
from bench.studies.front_end import NULL
from bench.studies.short_texts import ShortTexts
from headwaiter_client import Client
from headwaiter_client.cli.load_generator import closed_loop
from headwaiter_proto import encoder_pb2 as pb

_SENTENCES = 5_000
# Enough sequences in flight to keep the server's batches full.
_TEXTS_PER_REQUEST, _REQUESTERS = 64, 8


@dataclass(frozen=True)
class ClientStreaming:
    """The figures of encode_stream.

    Attributes:
        short: short texts to the null model.
        sentences: number of sentences to the real model.
        client_s: seconds of the sentences through encode_stream, one per round.
        raw_s: seconds of the sentences in raw requests, whose replies are not parsed, one per round.
    """

    short: ShortTexts
    sentences: int
    client_s: list[float]
    raw_s: list[float]

    @property
    def ratio(self) -> float:
        """Throughput of encode_stream / throughput of raw requests."""
        return median_ratio(self.raw_s, self.client_s)


def client(fleet: Fleet, sizes: RunSizes) -> ClientStreaming:
    """Measure memory in a process of its own, then throughput in turns."""
    pin(LOAD_CORE)
    program = [sys.executable, "-m", "bench.studies.short_texts", fleet[NULL].address]
    printed = subprocess.run(program, stdout=subprocess.PIPE, check=True).stdout
    address = fleet[HEADWAITER].address
    # There are fewer distinct sentences, so they repeat.
    texts = list(islice(cycle(sentences()), _SENTENCES))
    figures = ClientStreaming(ShortTexts(**json.loads(printed)), len(texts), [], [])
    turns: list[tuple[Callable[[str, Sequence[str]], float], list[float]]]
    turns = [(_client_s, figures.client_s), (_raw_s, figures.raw_s)]
    for _ in range(sizes.rounds):
        # Alternate the order, because the second run of a pair may have an advantage.
        turns.reverse()
        for run_s, seconds in turns:
            seconds.append(run_s(address, texts))
    return figures


def _client_s(address: str, texts: Sequence[str]) -> float:
    started_s = time.perf_counter()
    with Client(address) as client:
        for _ in client.encode_stream(iter(texts), truncation="right"):
            pass
    return time.perf_counter() - started_s


def _raw_s(address: str, texts: Sequence[str]) -> float:
    requests = []
    for start in range(0, len(texts), _TEXTS_PER_REQUEST):
        values = pb.Texts(values=texts[start : start + _TEXTS_PER_REQUEST])
        message = pb.EncodeRequest(texts=values, truncation=pb.TRUNCATION_RIGHT).SerializeToString()
        requests.append(RawRequest(message))
    return asyncio.run(_send_s(address, requests))


async def _send_s(address: str, requests: Sequence[RawRequest]) -> float:
    async with grpc.aio.insecure_channel(address) as channel:
        await channel.channel_ready()
        load = await closed_loop(sender(channel), requests, _REQUESTERS)
    raise_first_error(load)
    return load.sending_s
