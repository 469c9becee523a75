"""The speed of the server's tokeniser against that of the model, both on two cores."""

import asyncio
import time
from dataclasses import dataclass

from bench.loads.raw_calls import text_requests
from bench.loads.traces import real_sentences, sentences
from bench.processes import LOAD_CORE, SERVER_CORE, pin
from bench.rounds import Rounds
from bench.run import Run
from bench.studies.int8 import sorted_batches
from headwaiter_client.cli.load_generator import Reply, closed_loop
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import Failures
from headwaiter_proto.rules.limits import RequestLimits
from headwaiter_server.inputs.tokenizer import BundleTokenizer
from headwaiter_server.requests.inputs import InputReaders, read_input
from headwaiter_server.requests.shares import InputLimit
from headwaiter_server.requests.threads import PriorityThreads
from headwaiter_server.runtime.bundle import TOKENIZER, Bundle
from headwaiter_server.runtime.graph import EncoderGraph
from testbed.minilm import bundle

ROUNDS = 5
_THREADS = 2
_SENTENCES = 500
# Tokenising all sentences once takes too little time to measure.
_REPEATS = 10
_TEXTS_PER_REQUEST = (1, 64)
_CONCURRENT_REQUESTS = 8
_LIMITS = RequestLimits(sequences=4096, tokens=65_536, message_bytes=1 << 24, attend_bytes=1 << 26)


@dataclass(frozen=True)
class Tokenizing:
    """Tokens per second in each round, with `texts` texts per request.

    `tokenized_per_s` counts the tokens of requests that are read as the server reads them, eight requests at a time.
    `encoded_per_s` counts the tokens that the packed fp32 graph encodes.
    """

    texts: int
    tokenized_per_s: Rounds
    encoded_per_s: Rounds

    @property
    def ratio(self) -> Rounds:
        """Tokenised / encoded tokens per second."""
        return self.tokenized_per_s / self.encoded_per_s


async def _has_room(_: int) -> None:
    pass


def tokenizing(run: Run) -> list[Tokenizing]:
    """Measure tokeniser and model in turn."""
    pin(SERVER_CORE, LOAD_CORE)
    opened = Bundle.open(bundle())
    manifest = opened.manifest
    tokenizer = BundleTokenizer((opened.folder / TOKENIZER).read_bytes(), manifest.max_text_tokens)
    trace = real_sentences(_SENTENCES, opened.folder / TOKENIZER, manifest.max_text_tokens)
    graph = EncoderGraph.open(opened.folder / "packed-cpu.fp32.onnx", "cpu", threads=_THREADS)
    batches = sorted_batches(trace)
    texts = sentences()[:_SENTENCES]
    measured = [Tokenizing(count, Rounds(), Rounds()) for count in _TEXTS_PER_REQUEST]

    unlimited = InputLimit(1 << 40)
    readers = InputReaders(PriorityThreads("tokenize"), PriorityThreads("decode"), unlimited, unlimited)

    async def read(request: pb.EncodeRequest, _: float) -> Reply:
        await read_input(request, Failures(), manifest, tokenizer, _LIMITS, readers, "", _has_room)
        return Reply(0)

    for _ in range(ROUNDS):
        for each in measured:
            requests = text_requests(texts, each.texts) * _REPEATS
            load = asyncio.run(closed_loop(read, requests, _CONCURRENT_REQUESTS))
            each.tokenized_per_s.append(trace.tokens * _REPEATS / load.sending_s)
            started_s = time.perf_counter()
            for batch in batches:
                graph.run(batch, hidden=False)
            each.encoded_per_s.append(trace.tokens / (time.perf_counter() - started_s))
    for each in measured:
        findings = run.figures.findings.of_part(f"texts per request: {each.texts}")
        findings.require("tokens/s: tokenised / encoded", each.ratio, "≥", 5.0)
    return measured
