"""The cost of the client: its memory on short texts, and its throughput on real sentences."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from itertools import cycle, islice

from bench.loads.raw_calls import RawRequest, raise_first_error, send_all, text_requests
from bench.loads.traces import sentences
from bench.measure import HEADWAITER, NULL
from bench.processes import LOAD_CORE, in_turn, pin
from bench.rounds import Rounds
from bench.run import Run
from bench.studies.call_cost import cost_us
from headwaiter_client import Client
from headwaiter_proto import encoder_pb2 as pb

_SENTENCES = 5_000
# Enough sequences in flight to keep the server's batches full.
_TEXTS_PER_REQUEST, _REQUESTERS = 64, 8


def client(run: Run) -> None:
    """Measure memory in a process of its own, then compare the throughput with that of raw requests."""
    pin(LOAD_CORE)
    program = [sys.executable, "-m", "bench.studies.short_texts", run.fleet[NULL].address]
    short = json.loads(subprocess.run(program, stdout=subprocess.PIPE, check=True).stdout)
    findings = run.figures.findings.of_part(f"{short['texts']:,} short texts through encode_stream, null model")
    findings.record("seconds", short["seconds"])
    findings.require("peak memory of the client, MiB", short["peak_mib"], "<", 200.0)
    findings.require("results that are missing, out of order or belong to another text", short["wrong"], "≤", 0.0)
    for count in (1, 64):
        cost = cost_us(run.fleet[NULL].address, count)
        name = f"CPU time of a call with {count} texts: client / generated stub"
        findings.record(name, cost["ratio"])
    address = run.fleet[HEADWAITER].address
    texts = list(islice(cycle(sentences()), _SENTENCES))
    turns = in_turn(partial(_client_s, address, texts), partial(_raw_s, address, texts), run.sizes.rounds)
    client_s, raw_s = map(Rounds, turns)
    findings = findings.of_part(f"{len(texts):,} sentences")
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
    requests = text_requests(texts, _TEXTS_PER_REQUEST, truncation=pb.TRUNCATION_RIGHT)
    raw = [RawRequest(each.SerializeToString()) for each in requests]
    load = send_all(address, raw, _REQUESTERS)
    raise_first_error(load)
    return load.sending_s
