"""Measures one server under one load, from both sides: what callers saw, and what the server spent on it."""

import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import BinaryIO, Self
from urllib.request import urlopen

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from bench.loads.load import Load, Request
from testbed.minilm import ROOT, bundle
from testbed.server_process import RunningServer, running_server

SERVER_CORE, LOAD_CORE = 0, 1
DEADLINE_S = 0.5
LOG = ROOT / "build" / "servers.log"

# A generator that is later than this, or busier, measures itself.
_LATE_S = 0.005
_BUSY = 0.8
_QUIET_S = 0.05


@dataclass(frozen=True)
class Contender:
    """A server with one setting.

    Attributes:
        name: for tables.
        policy: as `read_policy` takes it; empty for Headwaiter itself.
        graph: the graph's file name in the bundle, for a policy.
        program: the module that serves, when it is not one of the two usual ones.
    """

    name: str
    policy: str = ""
    graph: str = ""
    program: str = ""

    @property
    def label(self) -> str:
        """The name with its setting."""
        return f"{self.name} ({self.policy})" if ":" in self.policy else self.name


HEADWAITER = Contender("Headwaiter")


@dataclass(frozen=True)
class Run:
    """What one load on one server came to; NaN where there was nothing to measure.

    Attributes:
        requests_s: good answers a second.
        tokens_s: their tokens a second.
        tokens_cpu_s: their tokens for each second of CPU time that the server took.
        p50_ms: latency of good answers.
        p95_ms: latency of good answers.
        p99_ms: latency of good answers.
        short_p50_ms: latency among the shortest quarter of the requests.
        short_p99_ms: latency among the shortest quarter of the requests.
        useful_tokens: share of the rows through the linear layers that are tokens, not padding.
        useful_cells: share of the attention cells that a sequence needs, as a mean over batches.
        predicted: share of the batches whose time the server predicted within 20 %.
        kept_up: share of the requests that were answered while requests were still being sent.
        goodput_s: good answers a second within 500 ms.
        goodput_tokens_s: their tokens a second.
        refused_s: requests a second that were refused for want of capacity.
        refused_p99_ms: how long they waited to hear of it.
        too_late: answers that the server gave and no caller got in time.
        in_vain: share of the sequences that ran whose answer came too late.
    """

    requests_s: float
    tokens_s: float
    tokens_cpu_s: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    short_p50_ms: float
    short_p99_ms: float
    useful_tokens: float
    useful_cells: float
    predicted: float
    kept_up: float
    goodput_s: float
    goodput_tokens_s: float
    refused_s: float
    refused_p99_ms: float
    too_late: float
    in_vain: float


class Fleet:
    """Servers side by side on one core, each started when it is first asked for; one that rests takes no time of it."""

    def __init__(self) -> None:
        LOG.parent.mkdir(exist_ok=True)
        # At twice its capacity a server has a lot to say.
        self._log = LOG.open("wb")
        self._servers = ExitStack()
        self._running: dict[Contender, RunningServer] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.renew()
        self._log.close()

    def __getitem__(self, contender: Contender) -> RunningServer:
        """Return a server that serves, with one ONNX Runtime thread."""
        if contender not in self._running:
            self._running[contender] = self._servers.enter_context(_start(contender, self._log))
        return self._running[contender]

    def renew(self) -> None:
        """Stop all servers; whichever is asked for next starts anew.

        Two processes of the same code differ by up to a tenth, for as long as they live: a fleet for each round makes
        that part of what a median is taken of.
        """
        self._running.clear()
        self._servers.close()


def _start(contender: Contender, log: BinaryIO) -> AbstractContextManager[RunningServer]:
    wrapper = ["taskset", "-c", str(SERVER_CORE)]
    module = contender.program or ("bench.servers.baseline" if contender.policy else "")
    program = [sys.executable, "-m", module] if module else []
    own = ["--policy", contender.policy, "--graph", contender.graph]
    flags = own if contender.policy else ["--provider", "cpu", "--threads", "1", "--cache-dir", ""]
    return running_server(bundle(), flags, wrapper, program, log)


def measure(server: RunningServer, offer: Callable[[str], Load]) -> Run:
    """Offer a load to a server that has nothing else to do, from a core of its own."""
    pin(LOAD_CORE)
    _until_quiet(server)
    before, before_s = counters(server.metrics_url), cpu_s(server.process.pid)
    load = offer(server.address)
    _until_quiet(server)
    spent_s = cpu_s(server.process.pid) - before_s
    after = counters(server.metrics_url)
    if load.late_s > _LATE_S or load.busy > _BUSY:
        print(f"the load generator was late by {load.late_s * 1e3:.0f} ms at p99, {load.busy:.0%} busy", flush=True)
    return _run(load, spent_s, defaultdict(float, {name: value - before[name] for name, value in after.items()}))


def _run(load: Load, cpu_s: float, spent: Mapping[str, float]) -> Run:
    answered, requests = load.answered, load.requests
    shortest = np.quantile([request.tokens for request in requests], 0.25)
    short = [request for request in answered if request.tokens <= shortest]
    good = [request for request in answered if request.latency_s <= DEADLINE_S]
    in_time = [request for request in answered if request.replied_s <= load.started_s + load.sending_s]
    tokens = sum(request.tokens for request in answered)
    cost_error = "headwaiter_batch_cost_error_ratio"
    ran_tokens = spent["headwaiter_batch_tokens_sum"]
    return Run(
        requests_s=len(answered) / load.seconds,
        tokens_s=tokens / load.seconds,
        tokens_cpu_s=tokens / cpu_s,
        p50_ms=_latency_ms(answered, 0.5),
        p95_ms=_latency_ms(answered, 0.95),
        p99_ms=_latency_ms(answered, 0.99),
        short_p50_ms=_latency_ms(short, 0.5),
        short_p99_ms=_latency_ms(short, 0.99),
        useful_tokens=_share(ran_tokens, spent["headwaiter_batch_rows_total"] or ran_tokens),
        useful_cells=1
        - _share(spent["headwaiter_batch_padding_ratio_sum"], spent["headwaiter_batch_padding_ratio_count"]),
        predicted=_share(spent[f"{cost_error}_bucket 0.2"], spent[f"{cost_error}_count"]),
        kept_up=len(in_time) / len(requests),
        goodput_s=len(good) / load.sending_s,
        goodput_tokens_s=sum(request.tokens for request in good) / load.sending_s,
        refused_s=len(load.refused) / load.sending_s,
        refused_p99_ms=_latency_ms(load.refused, 0.99),
        too_late=spent["headwaiter_requests_total OK"] - len(answered),
        in_vain=1 - _share(len(answered), spent["headwaiter_batch_sequences_sum"]),
    )


def median(runs: Sequence[Run]) -> Run:
    """Return the median over rounds of every figure."""
    return Run(*(statistics.median(getattr(run, field.name) for run in runs) for field in fields(Run)))


def ratio(ours: Sequence[Run], theirs: Sequence[Run], figure: str) -> float:
    """Return the median over the rounds of one server's figure by another's."""
    return median_ratio([getattr(run, figure) for run in ours], [getattr(run, figure) for run in theirs])


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the median of the ratios in each round: what disturbs a round disturbs both."""
    return float(statistics.median(our / their for our, their in zip(ours, theirs, strict=True)))


def pin(*cores: int) -> None:
    """Keep this process on one core, or on some."""
    os.sched_setaffinity(0, cores)


def counters(url: str) -> defaultdict[str, float]:
    """Return a server's metrics by name, with status code or bucket where there is one, summed over other labels."""
    sums: defaultdict[str, float] = defaultdict(float)
    with urlopen(url, timeout=10) as page:
        for family in text_string_to_metric_families(page.read().decode()):
            for sample in family.samples:
                kept = [sample.labels[label] for label in ("code", "le") if label in sample.labels]
                sums[" ".join([sample.name, *kept])] += sample.value
    return sums


def _until_quiet(server: RunningServer) -> None:
    """Return once a server has nothing left to answer."""
    while counters(server.metrics_url)["headwaiter_inflight_requests"]:
        time.sleep(_QUIET_S)


def cpu_s(pid: int) -> float:
    """Return the CPU time, user and system, that a process has taken."""
    # The name before it may hold spaces, and ends with the last parenthesis.
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


def _latency_ms(requests: Sequence[Request], quantile: float) -> float:
    if not requests:
        return float("nan")
    return float(np.quantile([request.latency_s for request in requests], quantile)) * 1e3


def _share(part: float, whole: float) -> float:
    """Return a share, NaN of what a server did not count."""
    return part / whole if whole else float("nan")
