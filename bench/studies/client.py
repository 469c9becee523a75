"""The throughput of the client on real sentences, beside that of requests without the client."""

import time
from collections.abc import Sequence
from functools import partial
from itertools import cycle, islice

from bench.loads.raw_calls import RawRequest, raise_first_error, send_all
from bench.loads.traces import in_groups, sentences
from bench.measure import HEADWAITER
from bench.processes import LOAD_CORE, in_turn, pin
from bench.rounds import Rounds
from bench.run import Run
from headwaiter_client import Client
from headwaiter_proto import encoder_pb2 as pb

_SENTENCES = 5_000
# Enough sequences in flight to keep the server's batches full.
_TEXTS_PER_REQUEST, _REQUESTERS = 64, 8


def client(run: Run) -> None:
    """Send all sentences with the client and as raw requests, in turn."""
    pin(LOAD_CORE)
    address = run.fleet[HEADWAITER].address
    texts = list(islice(cycle(sentences()), _SENTENCES))
    turns = in_turn(partial(_client_s, address, texts), partial(_raw_s, address, texts), run.sizes.rounds)
    client_s, raw_s = map(Rounds, turns)
    findings = run.figures.findings.of_part(f"{len(texts):,} sentences")
    findings.record("seconds through encode_stream", client_s)
    findings.record("seconds of raw requests", raw_s)
    findings.require("texts/s: encode_stream / raw requests", raw_s / client_s, "≥", 0.9)


def _client_s(address: str, texts: Sequence[str]) -> float:
    started_s = time.perf_counter()
    with Client(address) as client:
        for _ in client.encode_stream(iter(texts), truncation="right"):
            pass
    return time.perf_counter() - started_s


def _raw_s(address: str, texts: Sequence[str]) -> float:
    requests = [
        pb.EncodeRequest(texts=pb.Texts(values=group), truncation=pb.TRUNCATION_RIGHT)
        for group in in_groups(texts, _TEXTS_PER_REQUEST)
    ]
    load = send_all(address, [RawRequest(each.SerializeToString()) for each in requests], _REQUESTERS)
    raise_first_error(load)
    return load.sending_s
