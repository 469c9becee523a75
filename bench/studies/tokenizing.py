"""How much faster the server tokenises texts than the model encodes them, both on two cores.

Run as `python -m bench.studies.tokenizing`; it prints a table.
"""

import asyncio
import statistics
import time
from dataclasses import dataclass

from bench.loads.traces import real_sentences, sentences
from bench.measure import LOAD_CORE, SERVER_CORE, median_ratio, pin
from bench.studies.int8 import in_batches
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.requests import RequestLimits
from headwaiter_server.models.tokenizer import TextEncoder
from headwaiter_server.rpc.inputs import read_input
from headwaiter_server.runtime.bundle import TOKENIZER, Bundle
from headwaiter_server.runtime.graph import EncoderGraph
from headwaiter_server.runtime.packing import PackedBatch
from testbed.minilm import bundle

ROUNDS = 5
_THREADS = 2
_SENTENCES = 500
# Sentences are tokenised so many times in a round, as once takes too little time to measure.
_REPEATS = 10
_TEXTS = (1, 64)
_AT_ONCE = 8
_LIMITS = RequestLimits(sequences=4096, tokens=65_536, message_bytes=1 << 24, attend_bytes=1 << 26)


@dataclass(frozen=True)
class Tokenizing:
    """Tokens a second, of each round.

    Attributes:
        texts: sentences in a request.
        tokenized: texts were read as the server reads them, eight requests at a time.
        encoded: the packed fp32 graph ran on their ids.
    """

    texts: int
    tokenized: list[float]
    encoded: list[float]

    @property
    def ratio(self) -> float:
        """How much faster texts are tokenised than encoded."""
        return median_ratio(self.tokenized, self.encoded)


def tokenizing() -> list[Tokenizing]:
    """Measure tokeniser and model in turns."""
    pin(SERVER_CORE, LOAD_CORE)
    opened = Bundle.open(bundle())
    manifest = opened.manifest
    text = TextEncoder(opened.folder / TOKENIZER, manifest.max_text_tokens)
    trace = real_sentences(_SENTENCES, opened.folder / TOKENIZER, manifest.max_text_tokens)
    graph = EncoderGraph.open(opened.folder / "packed-cpu.fp32.onnx", "cpu", threads=_THREADS)
    batches = in_batches(trace)
    values = sentences()[:_SENTENCES]
    rows = [Tokenizing(texts, [], []) for texts in _TEXTS]

    async def read(requests: list[pb.EncodeRequest]) -> None:
        waiting = iter(requests)

        async def read_in_turn() -> None:
            for request in waiting:
                await read_input(request, manifest, text, _LIMITS)

        await asyncio.gather(*(read_in_turn() for _ in range(_AT_ONCE)))

    for _ in range(ROUNDS):
        for row in rows:
            cuts = range(0, len(values), row.texts)
            requests = [pb.EncodeRequest(texts=pb.Texts(values=values[cut : cut + row.texts])) for cut in cuts]
            started_s = time.perf_counter()
            asyncio.run(read(requests * _REPEATS))
            row.tokenized.append(trace.tokens * _REPEATS / (time.perf_counter() - started_s))
            row.encoded.append(trace.tokens / _encode_s(graph, batches))
    return rows


def _encode_s(graph: EncoderGraph, batches: list[PackedBatch]) -> float:
    started_s = time.perf_counter()
    for batch in batches:
        graph.run(batch, hidden=False)
    return time.perf_counter() - started_s


def table(rows: list[Tokenizing]) -> list[str]:
    """Return a table in Markdown."""
    lines = ["| texts a request | tokenised | encoded | tokenised / encoded |", "|---|---|---|---|"]
    for row in rows:
        rates = [f"{statistics.median(rates):,.0f}" for rates in (row.tokenized, row.encoded)]
        lines.append(f"| {row.texts} | {rates[0]} | {rates[1]} | {row.ratio:.1f} |")
    return lines


if __name__ == "__main__":
    print("\n".join(table(tokenizing())))
