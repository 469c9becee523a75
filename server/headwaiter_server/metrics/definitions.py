"""All metrics of the server: the name, the description, the labels and the buckets of each."""

import platform
from collections.abc import Callable, Collection, Iterable, Iterator
from enum import StrEnum
from importlib.metadata import version
from typing import Protocol

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headwaiter_proto.rules.errors import ERROR_BY_REASON
from headwaiter_server.runtime.hardware import gpu_memory

_MODEL_LABELS = ("model", "version")

# Buckets of durations: the first digits of their upper bounds. A quantile is wrong by at most the width of its bucket.
# With `_FINE`, this is at most a fifth. The bounds are round because deadlines are: under overload, many answers come
# just before the deadline, and a quantile must not exceed it. Each stage has the coarser buckets, to save series.
_FINE = (1, 1.15, 1.3, 1.5, 1.75, 2, 2.25, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9)
_COARSE = (1, 1.5, 2, 3, 5, 7)


def _seconds(digits: tuple[float, ...]) -> tuple[float, ...]:
    """Return bounds from 0.5 ms to 70 s."""
    bounds = (float(f"{digit}e{power}") for power in range(-4, 2) for digit in digits)
    return tuple(bound for bound in bounds if 0.0005 <= bound <= 70)


_REQUEST_SECONDS, _STAGE_SECONDS = _seconds(_FINE), _seconds(_COARSE)
# Upper bounds of other buckets.
_TOKENS = tuple(float(2**power) for power in range(18))
_SEQUENCES = tuple(float(2**power) for power in range(13))
_RATIOS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
_ERROR_RATIOS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0)
# Reasons of errors that seldom come before the queue, so that their series of `refused` need not begin at 0.
_NO_SERIES_AT_START = {"INFERENCE_FAILED", "DEADLINE_EXCEEDED", "CANCELLED"}
# The creation times of counters would double the size of the page, and dashboards do not use them.
disable_created_metrics()  # type: ignore[no-untyped-call]


class ModelMetrics:
    """The metrics that have a series for each version of each model."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self.requests = self._counter("requests", "Requests answered, with a reply or an error.", "method", "code")
        self.request_durations = self._histogram(
            "request_duration_seconds",
            "Time from the arrival of a request to its reply, without requests that failed or were refused.",
            _REQUEST_SECONDS,
            "method",
        )
        self.stages = self._histogram(
            "stage_duration_seconds", "Time of each stage of Encode.", _STAGE_SECONDS, "stage"
        )
        self.attend_stages = self._histogram(
            "attend_stage_duration_seconds", "Time of each stage of Attend.", _STAGE_SECONDS, "stage"
        )
        self.busy = self._counter(
            "device_busy_seconds", "Seconds in which a device ran batches, failed batches too.", "device"
        )
        self.batch_runs = self._histogram("batch_run_seconds", "Time that a batch ran on its device.", _STAGE_SECONDS)
        self.batch_sequences = self._histogram("batch_sequences", "Sequences in a batch.", _SEQUENCES)
        self.batch_tokens = self._histogram("batch_tokens", "Tokens in a batch.", _TOKENS)
        self.batch_padding = self._histogram(
            "batch_padding_ratio", "Share of a batch's attention cells that are padding.", _RATIOS
        )
        self.cost_error = self._histogram(
            "batch_cost_error_ratio", "abs(predicted - actual) / actual run time of a batch.", _ERROR_RATIOS
        )
        self.closed_batches = self._counter(
            "batches_closed", "Batches by the reason why they are not larger.", "reason"
        )
        self.failed_batches = self._counter(
            "batches_failed", "Batches that failed, by the cause that was found.", "reason"
        )
        self.expired = self._counter("expired", "Sequences dropped because their deadline passed before they ran.")
        self.info = self._gauge("model_info", "A served model; always 1.", "digest", "provider", "graph")
        self.self_check = self._gauge(
            "self_check", "Differences from PyTorch on the golden inputs at start-up.", "measure"
        )
        self.fallback = self._gauge(
            "provider_fallback", "1 if the model runs on the CPU because CUDA did not work, else 0."
        )
        self.cost_terms = self._gauge(
            "batch_cost_seconds", "Cost of a launch, a token, a padded token, an attention cell, a hidden row.", "term"
        )
        self.token_budget = self._gauge("token_budget", "Current maximum of tokens in a batch.")
        self.limits_ratio = self._gauge(
            "batch_limits_ratio", "Current batch limits / limits before serving; less than 1 if memory is short."
        )
        self.cost_correction = self._gauge(
            "cost_correction_ratio",
            "Median of measured time / time predicted by the cost measured before serving, of the latest batches.",
        )
        self.service_rate = self._gauge(
            "service_tokens_per_second", "Tokens per second of full batches, measured before serving."
        )
        self.calibration_error = self._gauge(
            "calibration_error_ratio",
            "Median of abs(predicted - measured) / measured run time of the batches timed before serving.",
        )
        self.queue_sequences = self._gauge("queue_sequences", "Sequences in the queue.")
        self.queue_tokens = self._gauge("queue_tokens", "Tokens of the sequences in the queue.")
        self.estimated_wait = self._gauge("estimated_wait_seconds", "Wait estimate of a sequence that arrives now.")

    def remove(self, name: str, version: str) -> None:
        """Remove the series of one version of a model."""
        for family in vars(self).values():
            if isinstance(family, Histogram | Counter | Gauge):
                family.remove_by_labels({"model": name, "version": version})

    def _counter(self, name: str, description: str, *labels: str) -> Counter:
        return Counter(f"headwaiter_{name}", description, (*_MODEL_LABELS, *labels), registry=self._registry)

    def _gauge(self, name: str, description: str, *labels: str) -> Gauge:
        return Gauge(f"headwaiter_{name}", description, (*_MODEL_LABELS, *labels), registry=self._registry)

    def _histogram(self, name: str, description: str, bounds: tuple[float, ...], *labels: str) -> Histogram:
        names = (*_MODEL_LABELS, *labels)
        return Histogram(f"headwaiter_{name}", description, names, buckets=bounds, registry=self._registry)


class ServerMetrics:
    """The metrics that have no series for each model."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.refused = Counter(
            "headwaiter_refused", "Requests refused before they entered the queue.", ["reason"], registry=registry
        )
        # Each reason starts at 0: Prometheus' rate() does not see the first increase of a series that starts at 1.
        for reason in ERROR_BY_REASON.keys() - _NO_SERIES_AT_START:
            self.refused.labels(reason)
        self.inflight = Gauge("headwaiter_inflight_requests", "Requests in progress.", registry=registry)
        # The page of metrics adds up the series of all processes, so each process has a series of its own.
        self.certificate_expiry = Gauge(
            "headwaiter_tls_certificate_expiry_timestamp_seconds",
            "Earliest expiry of the certificates in --tls-cert, in seconds since 1970-01-01.",
            ["process"],
            registry=registry,
        )


class TenantMetrics:
    """The metrics that have a series for each tenant; tenants come from the file of tokens, never from a caller."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "headwaiter_tenant_requests",
            "Requests of a tenant answered, with a reply or an error.",
            ["tenant", "code"],
            registry=registry,
        )
        self.request_durations = Histogram(
            "headwaiter_tenant_request_duration_seconds",
            "Time from the arrival of a tenant's request to its reply, without requests that failed or were refused.",
            ["tenant"],
            buckets=_STAGE_SECONDS,
            registry=registry,
        )
        self.tokens = Counter(
            "headwaiter_tenant_tokens",
            "Tokens of a tenant's requests that were encoded.",
            ["tenant"],
            registry=registry,
        )
        self.refused = Counter(
            "headwaiter_tenant_refused",
            "Requests of a tenant refused before they entered the queue.",
            ["tenant", "reason"],
            registry=registry,
        )


class FrontEndMetrics:
    """The metrics of front ends in processes of their own."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.restarts = Counter(
            "headwaiter_front_end_restarts", "Front ends that ended and were started again.", registry=registry
        )
        self.running = Gauge("headwaiter_front_ends", "Front ends that run.", registry=registry)


class GpuMemory(Collector):
    """Reads the memory of GPUs at each scrape."""

    def __init__(self, gpus: Collection[int]) -> None:
        self._gpus = gpus

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the two metrics."""
        used = GaugeMetricFamily("headwaiter_gpu_memory_used_bytes", "Memory in use by all processes.", labels=["gpu"])
        total = GaugeMetricFamily("headwaiter_gpu_memory_total_bytes", "Memory of the GPU.", labels=["gpu"])
        for gpu in self._gpus:
            if memory := gpu_memory(gpu):
                used.add_metric([str(gpu)], memory.used_bytes)
                total.add_metric([str(gpu)], memory.total_bytes)
        yield from (used, total)


class ProcessMetrics(Collector):
    """Reads the processor time, the memory, the start time and the open files of this process at each scrape.

    Args:
        process: the name of this process. The page of metrics adds up the series of all processes, and a sum of start
            times would mean nothing, so the name is a label.
    """

    def __init__(self, process: str) -> None:
        self._labels, self._collector = {"process": process}, ProcessCollector(registry=None)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        for family in self._collector.collect():
            family.samples = [sample._replace(labels=self._labels) for sample in family.samples]
            yield family


class BuildInfo:
    """The versions of what runs, and the commit; registered in one process of a server only."""

    def __init__(self, registry: CollectorRegistry, onnxruntime: str, revision: str) -> None:
        info = Gauge(
            "headwaiter_build_info",
            "The versions of Headwaiter, Python and ONNX Runtime, and the commit of Headwaiter; always 1.",
            ["version", "revision", "python", "onnxruntime"],
            registry=registry,
        )
        info.labels(version("headwaiter"), revision, platform.python_version(), onnxruntime).set(1)


class History(Protocol):
    """How often a model was loaded and unloaded, and the seconds that its loads took."""

    @property
    def loads(self) -> int: ...  # noqa: D102 - the class says it

    @property
    def evictions(self) -> int: ...  # noqa: D102

    @property
    def loading_s(self) -> float: ...  # noqa: D102


class VersionState(Protocol):
    """What a version of a model is doing."""

    @property
    def history(self) -> History:
        """How often its model was loaded and unloaded."""
        ...

    @property
    def name(self) -> str:
        """Name of the model."""
        ...

    @property
    def state(self) -> StrEnum:
        """One of the states that a version can have."""
        ...

    @property
    def version(self) -> str:
        """The version as callers name it."""
        ...


_HISTORY: tuple[tuple[str, str, Callable[[History], float]], ...] = (
    ("model_loads", "Loads of a model, in any version.", lambda each: each.loads),
    ("model_evictions", "How often a model was unloaded to make room for another one.", lambda each: each.evictions),
    ("model_loading_seconds", "Seconds that the loads of a model took.", lambda each: each.loading_s),
)


class VersionStates(Collector):
    """Reads what the versions of all models are doing at each scrape; registered in one process of a server only."""

    def __init__(self, versions: Callable[[], Iterable[VersionState]]) -> None:
        self._versions = versions

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        found: dict[tuple[str, str, str], bool] = {}
        histories: dict[str, History] = {}
        for each in self._versions():
            histories[each.name] = each.history
            for state in type(each.state):
                # A version that is loaded again is in two states while the old files are still served.
                key = each.name, each.version, state.value
                found[key] = found.get(key, False) or each.state is state
        description = "1 for the state of a version of a model, 0 for its other states."
        states = GaugeMetricFamily("headwaiter_version_state", description, labels=["model", "version", "state"])
        for labels, value in found.items():
            states.add_metric(labels, value)
        yield states
        for name, description, value_of in _HISTORY:
            counter = CounterMetricFamily(f"headwaiter_{name}", description, labels=["model"])
            for model, history in histories.items():
                counter.add_metric([model], value_of(history))
            yield counter
