"""Measures one server under one load: latencies and rates at the load generator, CPU time and batches at the server."""

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from urllib.request import urlopen

import grpc
import numpy as np
import psutil
from prometheus_client.parser import text_string_to_metric_families

from bench.loads.raw_calls import failed_with
from bench.processes import LOAD_CORE, SERVER_CORE, cpu_s, pin
from bench.rounds import Rounds
from headwaiter_client.cli.load_generator import Load
from testbed.minilm import ROOT, bundle
from testbed.server_process import RunningServer, running_server

DEADLINE_S = 0.5
LOG = ROOT / "build" / "servers.log"

# If the load generator is later or busier than this, it may limit the load.
_MAX_LATE_S = 0.005
_MAX_BUSY = 0.8
_POLL_S = 0.05


@dataclass(frozen=True)
class ServerSetup:
    """One configuration of a server: headwaiter-server, a policy with its graph, or a Python module.

    Attributes:
        name: name in the tables.
        policy: text for `read_policy`.
        graph: file name of the graph in the bundle, for a policy.
        program: Python module and its first arguments.
        flags: further flags of headwaiter-server, or of a program that takes them.
    """

    name: str
    policy: str = ""
    graph: str = ""
    program: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The name with its setting."""
        return f"{self.name} ({self.policy})" if ":" in self.policy else self.name


HEADWAITER = ServerSetup("Headwaiter")
MINIMAL = ServerSetup("minimal server", program=("bench.servers.minimal",))
NULL = ServerSetup("null model", program=("bench.servers.modified", "null"))


@dataclass(frozen=True)
class Measurement:
    """The figures of one load on one server; NaN where nothing was measured.

    Only answered requests count: in the rates, their tokens too, and in the percentiles, their latencies.

    Attributes:
        tokens_per_cpu_s: tokens of answered requests / CPU seconds of the server.
        short_p50_ms, short_p99_ms: latency of the shortest quarter of the requests.
        useful_rows: share of the rows of the linear layers that are tokens and not padding.
        useful_cells: share of the attention cells that are not padding, averaged over batches.
        predicted: share of the batches whose predicted seconds were within 20 % of the measured seconds.
        kept_up: share of the requests that were answered before the load generator stopped sending.
        goodput_per_s, goodput_tokens_per_s: requests that were answered within 500 ms, and their tokens, per second.
        refused_per_s: requests per second that the server refused because it had no capacity.
        refused_p99_ms: 99th percentile of the latency of these refusals.
        late_answers: answers that the server sent and the load generator did not receive before the deadline.
        wasted_sequences: of the sequences that ran, the share whose answer missed the deadline.
    """

    requests_per_s: float
    tokens_per_s: float
    tokens_per_cpu_s: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    short_p50_ms: float
    short_p99_ms: float
    useful_rows: float
    useful_cells: float
    predicted: float
    kept_up: float
    goodput_per_s: float
    goodput_tokens_per_s: float
    refused_per_s: float
    refused_p99_ms: float
    late_answers: float
    wasted_sequences: float


class Fleet(ExitStack):
    """Server processes on one core, each started on first use; a server without requests takes no CPU time."""

    def __init__(self) -> None:
        super().__init__()
        LOG.parent.mkdir(exist_ok=True)
        LOG.unlink(missing_ok=True)
        self._running: dict[ServerSetup, RunningServer] = {}

    def __getitem__(self, setup: ServerSetup) -> RunningServer:
        """Return a server that is ready and has one ONNX Runtime thread."""
        if setup not in self._running:
            # Log to a file, because a server at twice its capacity logs a lot.
            log = self.enter_context(LOG.open("ab"))
            program, flags = setup.program, ["--provider", "cpu", "--threads", "1", *setup.flags]
            if setup.policy:
                program, flags = ("bench.servers.baseline",), ["--policy", setup.policy, "--graph", setup.graph]
            python = [sys.executable, "-m", *program] if program else []
            on_core = ["taskset", "-c", str(SERVER_CORE)]
            self._running[setup] = self.enter_context(running_server(bundle(), flags, on_core, python, log))
        return self._running[setup]

    def stop_all(self) -> None:
        """Stop all servers; the next use of each starts a new process.

        Two processes of the same code can differ in speed by a tenth for their whole lifetime. With new processes in
        each round, the median over the rounds averages this difference out.
        """
        self._running.clear()
        self.close()


@contextmanager
def logged_server(bundle: Path | None, *flags: str) -> Iterator[RunningServer]:
    """Run headwaiter-server on any core, with its log in the file."""
    LOG.parent.mkdir(exist_ok=True)
    with LOG.open("ab") as log, running_server(bundle, flags, log=log) as server:
        yield server


def measure(server: RunningServer, send_load: Callable[[str], Load]) -> Measurement:
    """Wait until the server is idle, send it a load from another core, and return the figures."""
    pin(LOAD_CORE)
    _wait_until_idle(server)
    before, cpu_before_s = counters(server.metrics_url), cpu_s(server.process.pid)
    load = send_load(server.address)
    _wait_until_idle(server)
    server_cpu_s = cpu_s(server.process.pid) - cpu_before_s
    after = counters(server.metrics_url)
    warn_if_late(load)
    counted = defaultdict(float, {name: value - before[name] for name, value in after.items()})
    return _measurement(load, server_cpu_s, counted)


def warn_if_late(load: Load) -> None:
    """Print a warning if the load generator may have limited the load."""
    if load.late_s > _MAX_LATE_S or load.busy > _MAX_BUSY:
        print(f"the load generator was {load.late_s * 1e3:.0f} ms late at p99 and {load.busy:.0%} busy", flush=True)


def _measurement(load: Load, server_cpu_s: float, counted: Mapping[str, float]) -> Measurement:
    answered, outcomes = load.answered, load.outcomes
    shortest_tokens = np.quantile([outcome.tokens for outcome in outcomes], 0.25)
    latencies_s = [outcome.latency_s for outcome in answered]
    short_s = [outcome.latency_s for outcome in answered if outcome.tokens <= shortest_tokens]
    good = [outcome for outcome in answered if outcome.latency_s <= DEADLINE_S]
    while_sending = [outcome for outcome in answered if outcome.replied_s <= load.started_s + load.sending_s]
    tokens = sum(outcome.tokens for outcome in answered)
    refused_s = [outcome.latency_s for outcome in failed_with(load, grpc.StatusCode.RESOURCE_EXHAUSTED)]
    cost_error = "headwaiter_batch_cost_error_ratio"
    batch_tokens = counted["headwaiter_batch_tokens_sum"]
    padding = "headwaiter_batch_padding_ratio"
    return Measurement(
        requests_per_s=len(answered) / load.answered_s,
        tokens_per_s=tokens / load.answered_s,
        tokens_per_cpu_s=tokens / server_cpu_s,
        p50_ms=quantile_ms(latencies_s, 0.5),
        p95_ms=quantile_ms(latencies_s, 0.95),
        p99_ms=quantile_ms(latencies_s, 0.99),
        short_p50_ms=quantile_ms(short_s, 0.5),
        short_p99_ms=quantile_ms(short_s, 0.99),
        useful_rows=_share(batch_tokens, counted["headwaiter_batch_rows_total"] or batch_tokens),
        useful_cells=1 - _share(counted[f"{padding}_sum"], counted[f"{padding}_count"]),
        predicted=_share(counted[f"{cost_error}_bucket 0.2"], counted[f"{cost_error}_count"]),
        kept_up=len(while_sending) / len(outcomes),
        goodput_per_s=len(good) / load.sending_s,
        goodput_tokens_per_s=sum(outcome.tokens for outcome in good) / load.sending_s,
        refused_per_s=len(refused_s) / load.sending_s,
        refused_p99_ms=quantile_ms(refused_s, 0.99),
        late_answers=counted["headwaiter_requests_total OK"] - len(answered),
        wasted_sequences=1 - _share(len(answered), counted["headwaiter_batch_sequences_sum"]),
    )


def median(rounds: Sequence[Measurement]) -> Measurement:
    """Return each figure's median over the rounds."""
    names = [field.name for field in fields(Measurement)]
    return Measurement(*(statistics.median(getattr(each, name) for each in rounds) for name in names))


def ratio(ours: Sequence[Measurement], theirs: Sequence[Measurement], figure: str) -> Rounds:
    """Return ours / theirs of one figure in each round."""
    return rounds_of(ours, figure) / rounds_of(theirs, figure)


def rounds_of(measurements: Sequence[Measurement], figure: str) -> Rounds:
    """Return one figure of each round."""
    return Rounds(getattr(each, figure) for each in measurements)


def server_cpu_s(server: RunningServer) -> tuple[float, float]:
    """Return the CPU seconds of a server's process, and of its children."""
    process = psutil.Process(server.process.pid)
    return cpu_s(process.pid), sum(cpu_s(child.pid) for child in process.children())


def counters(url: str) -> defaultdict[str, float]:
    """Return a server's metrics. A key is the name with its status code or bucket; other labels are summed."""
    sums: defaultdict[str, float] = defaultdict(float)
    with urlopen(url, timeout=10) as page:
        for family in text_string_to_metric_families(page.read().decode()):
            for sample in family.samples:
                kept_labels = [sample.labels[label] for label in ("code", "le") if label in sample.labels]
                sums[" ".join([sample.name, *kept_labels])] += sample.value
    return sums


def _wait_until_idle(server: RunningServer) -> None:
    while counters(server.metrics_url)["headwaiter_inflight_requests"]:
        time.sleep(_POLL_S)


def quantile_ms(seconds: Sequence[float], quantile: float) -> float:
    """Return a quantile of seconds in milliseconds; NaN if there are none."""
    return float(np.quantile(seconds, quantile)) * 1e3 if seconds else float("nan")


def _share(part: float, whole: float) -> float:
    return part / whole if whole else float("nan")
