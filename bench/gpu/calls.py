"""Calls of one text each to a server with eight front ends, with and without CUDA graphs."""

import time
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from itertools import repeat, takewhile
from multiprocessing import get_context

from bench.findings import Findings
from bench.gpu.decisions import CALLS, compare, decide
from bench.gpu.models import minilm_bundle
from bench.gpu.settings import FASTEST, Settings
from bench.loads.raw_calls import RawRequest, connected, raise_first_error
from bench.measure import counters
from headwaiter_proto import encoder_pb2 as pb
from testbed.server_process import RunningServer, running_server

# 21 tokens of all-MiniLM-L6-v2.
_TEXT = "how do i cancel a hotel booking that i made with points last week without losing any of them"
_FRONT_ENDS = "8"
_WITHOUT_GRAPHS = CALLS.replace(":", ", without CUDA graphs:")
_STREAMS_PER_CONNECTION = 8
# Time in which all processes connect.
_CONNECT_S = 0.5
_WARM_UP_S = 0.5


def calls(settings: Settings, findings: Findings) -> None:
    """Send calls of one text from several processes, so that these do not limit the load."""
    flags = ["--provider", "cuda", "--precision", FASTEST, "--front-ends", _FRONT_ENDS]
    # A forked process would inherit threads of gRPC.
    with ProcessPoolExecutor(settings.effort.load_processes, get_context("spawn")) as pool:
        for graphs in (True, False):
            warm_up = "on" if graphs else "off"  # A server without warm-up captures no CUDA graphs.
            with (
                findings.attempt(f"a server with --warm-up {warm_up}"),
                running_server(
                    minilm_bundle(settings), [*flags, "--warm-up", warm_up], program=settings.gpu.server
                ) as server,
            ):
                for callers in settings.effort.callers:
                    name = (CALLS if graphs else _WITHOUT_GRAPHS).replace("128", str(callers))
                    with findings.attempt(name):
                        _measure(name, callers, server, pool, settings, findings)
    graphs_and_none = [findings.number(name) for name in (CALLS, _WITHOUT_GRAPHS)]
    if None not in graphs_and_none:
        both = [each for each in graphs_and_none if each is not None]
        choice = "on" if both[0] >= both[1] else "off"
        decide(findings, "CUDA graphs for many callers", f"{choice}, {compare(*both)} calls/s without")


def _measure(
    name: str, callers: int, server: RunningServer, pool: Executor, settings: Settings, findings: Findings
) -> None:
    processes = min(callers, settings.effort.load_processes)
    shares = [callers // processes + (number < callers % processes) for number in range(processes)]
    _rate(server.address, shares, _WARM_UP_S, pool)
    before = counters(server.metrics_url)
    rate = _rate(server.address, shares, settings.effort.calls_s, pool)
    after = counters(server.metrics_url)
    if name == CALLS:
        findings.require(name, rate, "≥", 4750.0, is_aim=True)
    else:
        findings.record(name, rate)
    sums = [f"headwaiter_batch_sequences_{end}" for end in ("sum", "count")]
    sequences, batches = (after[each] - before[each] for each in sums)
    findings.record(name.replace("calls/s", "sequences a batch"), sequences / batches)


def _rate(address: str, shares: Sequence[int], seconds: float, pool: Executor) -> float:
    """Return the calls/s of callers in several processes together."""
    starts_s = time.monotonic() + _CONNECT_S
    return sum(pool.map(_send, repeat(address), shares, repeat(starts_s), repeat(seconds)))


def _send(address: str, callers: int, starts_s: float, seconds: float) -> float:
    """Send calls of one text from a number of callers, from a time of the system's clock on; return the calls/s."""
    message = RawRequest(pb.EncodeRequest(texts=pb.Texts(values=[_TEXT])).SerializeToString())
    with connected(address, -(-callers // _STREAMS_PER_CONNECTION)) as send:
        time.sleep(max(0.0, starts_s - time.monotonic()))
        end_s = time.monotonic() + seconds
        load = send(takewhile(lambda _: time.monotonic() < end_s, repeat(message)), callers)
    raise_first_error(load)
    return len(load.outcomes) / load.answered_s
