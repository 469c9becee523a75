"""Servers on BERT-base's shape: throughput beside that in process, one short sequence, and calls without work."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from bench.findings import Findings
from bench.gpu.decisions import P50, SERVED, SHORT, compare, decide
from bench.gpu.in_process import IN_PROCESS, SEQUENCES_PER_REQUEST
from bench.gpu.models import bert_bundle, bert_trace
from bench.gpu.settings import FASTEST, Settings
from bench.gpu.timing import median_seconds
from bench.loads.raw_calls import ENCODE, RawRequest, connected, raise_first_error, request, send_all
from bench.loads.traces import Ids, in_groups
from bench.measure import counters
from headwaiter_client import Client
from testbed.server_process import RunningServer, running_server

DEFAULT, NO_FRONT_ENDS, TWO_INSTANCES = "by default", "without front ends", "with two instances"
# A server without warm-up captures no CUDA graphs.
WITHOUT_GRAPHS = "without CUDA graphs"
_FLAGS = {
    DEFAULT: ("--front-ends", "auto"),
    NO_FRONT_ENDS: ("--front-ends", "0"),
    TWO_INSTANCES: ("--front-ends", "auto", "--instances", "2"),
    WITHOUT_GRAPHS: ("--front-ends", "auto", "--warm-up", "off"),
}
# A second instance must gain this much, because it holds the weights once more.
_GAIN = 1.03
_EMPTY_CALL = "/grpc.health.v1.Health/Check"
# Requests in flight, which keep the server's batches full, and connections for at least as many front ends.
_REQUESTERS = 24


def served(settings: Settings, findings: Findings) -> None:
    """Send the same load to servers with different flags, one after another."""
    _, trace = bert_trace(settings)
    sequences, rounds = [*trace.sequences] * settings.effort.traces, settings.effort.rounds
    tokens = trace.tokens * settings.effort.traces
    rates: dict[str, float] = {}
    p50_ms: dict[str, float] = {}
    for setup in _FLAGS:
        with findings.attempt(setup), _server(setup, settings) as server:
            if setup != WITHOUT_GRAPHS:
                with findings.attempt(f"{setup}: throughput"):
                    before = counters(server.metrics_url)
                    seconds = _seconds(setup, server, sequences, settings)
                    rates[setup] = tokens / seconds
                    findings.record(f"served {setup}, {FASTEST}: tokens/s", rates[setup])
                    _record_batches(setup, before, counters(server.metrics_url), (rounds + 1) * seconds, findings)
            if setup != TWO_INSTANCES:
                with findings.attempt(f"{setup}: latency"):
                    p50_ms[setup] = _latency(setup, server, settings, findings)
            if setup == DEFAULT:
                with Client(server.address) as client:
                    execution = client.model().execution
                findings.expect("provider", execution.provider, "cuda")
                findings.record("token budget, served", execution.token_budget)
    _decide(rates, p50_ms, findings)


def _decide(rates: Mapping[str, float], p50_ms: Mapping[str, float], findings: Findings) -> None:
    in_process = findings.number(f"{IN_PROCESS}, {FASTEST}: tokens/s")
    if in_process is None:
        findings.skip(SERVED, "it needs the part in_process in the same run")
    elif DEFAULT in rates:
        findings.require(SERVED, rates[DEFAULT] / in_process, "≥", 0.9)
    if {DEFAULT, NO_FRONT_ENDS} <= rates.keys():
        both = rates[DEFAULT], rates[NO_FRONT_ENDS]
        choice = "auto" if both[0] >= both[1] else "0"
        decide(findings, "--front-ends", f"{choice}, {compare(*both)} tokens/s without")
    if {DEFAULT, TWO_INSTANCES} <= rates.keys():
        both = rates[TWO_INSTANCES], rates[DEFAULT]
        decide(findings, "--instances", f"{2 if both[0] > _GAIN * both[1] else 1}, {compare(*both)} tokens/s of one")
    if {DEFAULT, WITHOUT_GRAPHS} <= p50_ms.keys():
        both = p50_ms[DEFAULT], p50_ms[WITHOUT_GRAPHS]
        choice = "on" if both[0] < both[1] else "off"
        decide(findings, "CUDA graphs for one caller", f"{choice}, p50 {compare(*both)} ms without")


@contextmanager
def _server(setup: str, settings: Settings) -> Iterator[RunningServer]:
    flags = ["--provider", "cuda", "--precision", FASTEST, *_FLAGS[setup]]
    with running_server(bert_bundle(settings), flags, program=settings.gpu.server) as server:
        yield server


def _seconds(setup: str, server: RunningServer, sequences: list[Ids], settings: Settings) -> float:
    """Return the median seconds of the whole load, over connections that are open before."""
    requests = [request(*group) for group in in_groups(sequences, SEQUENCES_PER_REQUEST)]
    with connected(server.address, connections=_REQUESTERS) as send:

        def send_all() -> None:
            raise_first_error(send(requests, _REQUESTERS))

        return median_seconds(f"Headwaiter, served {setup}", send_all, settings, settings.effort.rounds)


def _record_batches(
    setup: str, before: dict[str, float], after: dict[str, float], seconds: float, findings: Findings
) -> None:
    batches = after["headwaiter_batch_sequences_count"] - before["headwaiter_batch_sequences_count"]
    tokens = after["headwaiter_batch_tokens_sum"] - before["headwaiter_batch_tokens_sum"]
    busy_s = after["headwaiter_device_busy_seconds_total"] - before["headwaiter_device_busy_seconds_total"]
    findings.record(f"served {setup}: tokens a batch", tokens / batches)
    findings.record(f"served {setup}: share of the time in which the GPU has a batch", busy_s / seconds)


def _latency(setup: str, server: RunningServer, settings: Settings, findings: Findings) -> float:
    """Send requests of one sequence of 32 tokens, one after another; return the median in milliseconds.

    A call of the health service has no work: its time is that of gRPC, in the server and in this process.
    """
    p50_ms, p99_ms = _quantiles_ms(server, request(np.arange(32, dtype=np.int64)), ENCODE, settings)
    if setup == DEFAULT:
        findings.require(P50, p50_ms, "≤", 2.9, is_aim=True)
    else:
        findings.record(f"{SHORT}: served {setup}, p50 ms", p50_ms)
    findings.record(f"{SHORT}: served {setup}, p99 ms", p99_ms)
    empty_ms, _ = _quantiles_ms(server, RawRequest(b""), _EMPTY_CALL, settings)
    findings.record(f"an empty call: served {setup}, p50 ms", empty_ms)
    return p50_ms


def _quantiles_ms(server: RunningServer, sent: RawRequest, method: str, settings: Settings) -> tuple[float, float]:
    """Send a request again and again from one requester, and return p50 and p99."""
    requests = settings.effort.requests
    send_all(server.address, [sent] * (requests // 5), 1, method)
    load = send_all(server.address, [sent] * requests, 1, method)
    raise_first_error(load)
    p50_ms, p99_ms = np.quantile([each.latency_s * 1e3 for each in load.outcomes], (0.5, 0.99)).tolist()
    return p50_ms, p99_ms
