"""Compares Headwaiter with other servers: the same model, the same sequences, one core for each server."""

import argparse
import asyncio
import json
import re
import time
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import numpy as np
import psutil

from bench.loads.traces import MEDIAN_30, MEDIAN_90, count_within
from bench.peers import page
from bench.peers.calls import Answered, Vector, closed_loop, lowest_cosine
from bench.peers.environments import WITHOUT_ONNX, environment, pins, version
from bench.peers.sentences import Sentence, sentences
from bench.peers.servers import FOLDERS, HEADWAITER, PEERS, Peer, Running, running
from bench.peers.table import Measured, Row, busy_generator, failures, trace_table
from bench.processes import LOAD_CORE, pin
from headwaiter_server.runtime.bundle import TOKENIZER, Bundle
from testbed.minilm import ROOT, bundle

REQUESTERS = 32
_SEQUENCES = 2000
# A server that does not answer a load in this time has failed.
_LOAD_TIMEOUT_S = 300.0
# What a server can cause: a lost connection, an answer of another form, or a process that has exited.
_FAILURES = (RuntimeError, OSError, EOFError, ValueError, LookupError, psutil.Error)
_LOGS = ROOT / "build" / "peers" / "logs"


@dataclass(frozen=True)
class Sizes:
    """Rounds, and tokens of each load: with 32 requesters, with 1 requester, and to check and warm up."""

    rounds: int = 3
    tokens: int = 30_000
    alone_tokens: int = 4_000
    checked_tokens: int = 4_000


_QUICK = Sizes(1, 3_000, 1_000, 1_500)


@dataclass(frozen=True)
class Work:
    """The sentences of one trace, and Headwaiter's vectors of them, by which all servers are checked."""

    trace: str
    sentences: list[Sentence]
    expected: list[Vector]

    def first(self, tokens: int) -> list[Sentence]:
        """Return the first sentences, with at most this number of tokens."""
        return self.sentences[: count_within([each.ids for each in self.sentences], tokens)]

    def check(self, peer: Peer, answered: Answered) -> float:
        """Return the lowest cosine similarity to Headwaiter's vectors; raise RuntimeError if it is too low."""
        vectors = [peer.api.vector(answer) for answer in answered.answers]
        cosine = lowest_cosine(vectors, self.expected[: len(vectors)])
        if not cosine > peer.min_cosine:
            raise RuntimeError(f"a vector has the cosine similarity {cosine:.5f} to Headwaiter's vector")
        return cosine


def main() -> None:
    """Run the comparison that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    peers_help = f"peers to run beside Headwaiter, of {', '.join(FOLDERS)} (default: all, and the page is written)"
    parser.add_argument("peers", nargs="*", choices=[[], *FOLDERS], metavar="PEER", help=peers_help)
    parser.add_argument("--quick", action="store_true", help="one round with short loads: a check that all servers run")
    json_help = "file for the figures of all rounds (default: build/bench-peers.json)"
    parser.add_argument("--json", type=Path, default=page.FIGURES, help=json_help)
    arguments = parser.parse_args()
    sizes, started_s = _QUICK if arguments.quick else Sizes(), time.monotonic()
    chosen = [peer for peer in PEERS if not peer.folder or peer.folder in (arguments.peers or FOLDERS)]
    problems: dict[str, str] = {}
    peers = _with_environments(chosen, problems)
    _LOGS.mkdir(parents=True, exist_ok=True)
    pin(LOAD_CORE)
    work = _work(sizes)
    rows = {peer: [Row(peer.version, peer.batches, peer.api.takes) for _ in work] for peer in peers}
    for number in range(sizes.rounds):
        for peer in peers:
            if peer.label in problems:
                continue
            try:
                for row, measured in zip(rows[peer], _measure(peer, work, sizes), strict=True):
                    row.rounds[number] = measured
            except _FAILURES as error:
                problems[peer.label] = " ".join(f"{type(error).__name__}: {error}".split())
            print(f"round {number + 1}: {peer.label}: {problems.get(peer.label, 'measured')}", flush=True)
    tables = [[rows[peer][place] for peer in peers] for place in range(len(work))]
    sections = [
        f"{each.trace}, {REQUESTERS} requesters:\n\n{trace_table(table)}"
        for each, table in zip(work, tables, strict=True)
    ]
    versions = _versions(peers)
    sections += [busy_generator([row for table in tables for row in table]), failures(problems), versions]
    minutes = (time.monotonic() - started_s) / 60
    print(*filter(None, sections), f"{sizes.rounds} rounds, {minutes:.1f} minutes", sep="\n\n")
    figures = {each.trace: list(map(asdict, table)) for each, table in zip(work, tables, strict=True)}
    written = {"rows": figures, "not measured": problems, "versions": versions}
    arguments.json.write_text(json.dumps(written, indent=1, ensure_ascii=False), encoding="utf-8")
    if not arguments.quick and not arguments.peers:
        page.write(arguments.json)


def _with_environments(chosen: list[Peer], problems: dict[str, str]) -> list[Peer]:
    """Return the peers whose environments could be made; add the others with the cause to the problems."""
    causes: dict[str, str] = {}
    for folder in dict.fromkeys(peer.folder for peer in chosen if peer.folder):
        try:
            environment(folder)
        except (RuntimeError, OSError) as error:
            causes[folder] = str(error)
    problems |= {peer.label: causes[peer.folder] for peer in chosen if peer.folder in causes}
    return [peer for peer in chosen if peer.folder not in causes]


def _work(sizes: Sizes) -> list[Work]:
    opened = Bundle.open(bundle())
    traces = [each.trace(_SEQUENCES, opened.manifest.vocabulary_size) for each in (MEDIAN_30, MEDIAN_90)]
    needed = [sentences(trace.first(sizes.tokens), opened.folder / TOKENIZER) for trace in traces]
    api = HEADWAITER.api
    with running(HEADWAITER, needed[0][0], _LOGS / "reference.log") as server:
        answers = [asyncio.run(closed_loop(api, server.address, each, REQUESTERS)).answers for each in needed]
    return [
        Work(trace.name, each, [api.vector(answer) for answer in answered])
        for trace, each, answered in zip(traces, needed, answers, strict=True)
    ]


def _measure(peer: Peer, work: list[Work], sizes: Sizes) -> list[Measured]:
    """Start a server, check its vectors, and return its figures on each trace."""
    log = _LOGS / f"{re.sub(r'[^a-z0-9.]+', '-', peer.label.lower())}.log"
    with running(peer, work[0].sentences[0], log) as server:
        for each in work:
            each.check(peer, _send(peer, server, each.first(sizes.checked_tokens), REQUESTERS))
        return [_load(peer, server, each, sizes) for each in work]


def _load(peer: Peer, server: Running, work: Work, sizes: Sizes) -> Measured:
    cpu_before_s = server.cpu_s()
    together = _send(peer, server, work.first(sizes.tokens), REQUESTERS)
    cpu_s = server.cpu_s() - cpu_before_s
    alone = _send(peer, server, work.first(sizes.alone_tokens), 1)
    load = together.load
    latencies_ms = [outcome.latency_s * 1e3 for outcome in load.outcomes]
    return Measured(
        requests_per_s=len(load.outcomes) / load.answered_s,
        tokens_per_cpu_s=sum(outcome.tokens for outcome in load.outcomes) / cpu_s,
        p50_ms=float(np.quantile(latencies_ms, 0.5)),
        p99_ms=float(np.quantile(latencies_ms, 0.99)),
        alone_p50_ms=float(np.median([outcome.latency_s * 1e3 for outcome in alone.load.outcomes])),
        memory_mib=server.memory_mib(),
        lowest_cosine=min(work.check(peer, together), work.check(peer, alone)),
        busy=load.busy,
    )


def _send(peer: Peer, server: Running, to_send: list[Sentence], requesters: int) -> Answered:
    loop = closed_loop(peer.api, server.address, to_send, requesters)
    return asyncio.run(asyncio.wait_for(loop, _LOAD_TIMEOUT_S))


def _versions(peers: list[Peer]) -> str:
    folders = dict.fromkeys(peer.folder for peer in peers if peer.folder not in ("", *WITHOUT_ONNX))
    others = sorted({version(pins(folder), "onnxruntime") for folder in folders})
    ours = metadata.version("onnxruntime-gpu")
    if others in ([ours], []):
        return f"ONNX Runtime is {ours} in all servers that use ONNX Runtime."
    return f"ONNX Runtime is {ours} in Headwaiter and in the grpc.aio server, and {', '.join(others)} in the others."


if __name__ == "__main__":
    main()
