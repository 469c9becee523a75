"""What our own client makes of a server: throughput on real sentences, and its memory on a hundred thousand texts.

Run as `python -m bench.client`; it prints both.
"""

import asyncio
import resource
import statistics
import time
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from typing import Any

import grpc

from bench.calls import ENCODE
from bench.front_end import NULL
from bench.measure import HEADWAITER, LOAD_CORE, Fleet, pin
from bench.traces import sentences
from headwaiter_client import Client
from headwaiter_proto import encoder_pb2 as pb

_SENTENCES, _ROUNDS = 5_000, 3
_SHORT_TEXTS = 100_000
# So the server is never without work, and its batches are full.
_IN_A_REQUEST, _IN_FLIGHT = 64, 8


def main() -> None:
    """Measure and print."""
    pin(LOAD_CORE)
    # There are fewer; they come again.
    texts = list(islice(cycle(sentences()), _SENTENCES))
    with Fleet() as fleet:
        address = fleet[NULL].address
        before_mib = _peak_mib()
        seconds = _stream_short_texts(address)
        print(
            f"{_SHORT_TEXTS:,} short texts in order in {seconds:.1f} s; {before_mib:.0f} MiB before, "
            f"{_peak_mib():.0f} at most"
        )
        address = fleet[HEADWAITER].address
        rounds = [(_with_client(address, texts), asyncio.run(_raw(address, texts))) for _ in range(_ROUNDS)]
    by_capacity = statistics.median(raw_s / client_s for client_s, raw_s in rounds)
    for client_s, raw_s in rounds:
        print(f"{len(texts):,} sentences: {client_s:.1f} s by encode_stream, {raw_s:.1f} s by raw requests")
    print(f"throughput by the server's own: {by_capacity:.2f}")


def _stream_short_texts(address: str) -> float:
    def texts() -> Iterator[str]:
        return (f"text {number}" for number in range(_SHORT_TEXTS))

    started_s = time.perf_counter()
    with Client(address) as client:
        count = 0
        for count, encoding in enumerate(client.encode_stream(texts()), 1):
            if encoding.index != count - 1:
                raise AssertionError(f"result {count - 1} is of text {encoding.index}")
    if count != _SHORT_TEXTS:
        raise AssertionError(f"{count} results")
    return time.perf_counter() - started_s


def _with_client(address: str, texts: Sequence[str]) -> float:
    started_s = time.perf_counter()
    with Client(address) as client:
        for _ in client.encode_stream(iter(texts), truncation="right"):
            pass
    return time.perf_counter() - started_s


async def _raw(address: str, texts: Sequence[str]) -> float:
    """Send the same texts in requests made beforehand, and leave the replies unread."""
    starts = range(0, len(texts), _IN_A_REQUEST)
    messages = iter(
        [
            pb.EncodeRequest(
                texts=pb.Texts(values=texts[start : start + _IN_A_REQUEST]), truncation=pb.TRUNCATION_RIGHT
            ).SerializeToString()
            for start in starts
        ]
    )
    async with grpc.aio.insecure_channel(address) as channel:
        await channel.channel_ready()
        send: Any = channel.unary_unary(ENCODE)

        async def send_in_turn() -> None:
            for message in messages:
                await send(message)

        started_s = time.perf_counter()
        await asyncio.gather(*(send_in_turn() for _ in range(_IN_FLIGHT)))
        return time.perf_counter() - started_s


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
