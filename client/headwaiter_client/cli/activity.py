"""What a server did between two readings of its metrics page, and what it is doing now.

Nothing here does I/O. docs/reference/metrics.md describes the metrics.
"""

import math
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import TypeAlias

# The labels of a series, in alphabetical order.
Labels: TypeAlias = tuple[tuple[str, str], ...]
# Name and version of a model.
ModelVersion: TypeAlias = tuple[str, str]

# The methods that put sequences into batches. The dashboard shows the durations of the same methods.
_BATCHED_METHODS = re.compile(r"Encode|EncodeStream|Classify|ModelInfer|ModelStreamInfer|POST .*")
_ENGINE: Labels = (("process", "engine"),)


class Series(StrEnum):
    """The series that `activity` reads."""

    BUILD = "headwaiter_build_info"
    STARTED = "process_start_time_seconds"
    FRONT_ENDS = "headwaiter_front_ends"
    IN_PROGRESS = "headwaiter_inflight_requests"
    REFUSED = "headwaiter_refused_total"
    STATES = "headwaiter_version_state"
    REQUESTS = "headwaiter_requests_total"
    DURATIONS = "headwaiter_request_duration_seconds_bucket"
    STAGE_SECONDS = "headwaiter_stage_duration_seconds_sum"
    QUEUE_SEQUENCES = "headwaiter_queue_sequences"
    QUEUE_TOKENS = "headwaiter_queue_tokens"
    ESTIMATED_WAIT = "headwaiter_estimated_wait_seconds"
    BATCHES = "headwaiter_batch_tokens_count"
    BATCH_SEQUENCES = "headwaiter_batch_sequences_sum"
    BATCH_TOKENS = "headwaiter_batch_tokens_sum"
    BATCH_PADDING = "headwaiter_batch_padding_ratio_sum"
    BUSY_SECONDS = "headwaiter_device_busy_seconds_total"
    GPU_MEMORY_USED = "headwaiter_gpu_memory_used_bytes"
    GPU_MEMORY_TOTAL = "headwaiter_gpu_memory_total_bytes"


# The values of one page, by series and labels.
Reading: TypeAlias = Mapping[Series, Mapping[Labels, float]]


@dataclass(frozen=True)
class VersionActivity:
    """The activity of one version of a model; a mean, a share or a quantile of nothing is NaN.

    Attributes:
        model: name of the model.
        version: version of the model.
        states: what the version is doing: ready, loading, draining or failed. A ready version can be loading again.
        requests_per_s: requests answered, with a reply or an error.
        errors_per_s: requests answered with an error, by code; without codes that did not occur.
        p50_s, p99_s: quantiles of the duration of answered requests, without Attend and without errors.
        stage_shares: share of each stage in the time of requests to encode.
        queue_sequences, queue_tokens: what waits now.
        estimated_wait_s: wait estimate of a sequence that arrives now.
        tokens_per_s: tokens of the batches that ran.
        batch_sequences, batch_tokens: mean size of a batch.
        padding: mean share of padding in a batch's attention cells.
        device_share: seconds in which devices ran the version's batches / seconds; 1 is one device, always busy.
    """

    model: str
    version: str
    states: list[str]
    requests_per_s: float
    errors_per_s: dict[str, float]
    p50_s: float
    p99_s: float
    stage_shares: dict[str, float]
    queue_sequences: float
    queue_tokens: float
    estimated_wait_s: float
    tokens_per_s: float
    batch_sequences: float
    batch_tokens: float
    padding: float
    device_share: float


@dataclass(frozen=True)
class ServerActivity:
    """The activity of a server.

    Attributes:
        seconds: seconds between the two readings.
        build: version of Headwaiter.
        started_unix_s: when the server started, in seconds since 1970; NaN if the page does not say it.
        front_ends: front ends that run; 0 if there is only one process.
        in_progress: requests that have arrived and have no reply yet.
        refused_per_s: requests refused before they were queued, by reason; without reasons that did not occur.
        errors_without_model_per_s: requests that ended with an error before the server had found their model, by code;
            without codes that did not occur.
        versions: the versions of all models, those with the largest share of the devices first.
        device_shares: the share of each device that each version of a model used, the largest first, by device.
        gpu_memory_used_bytes, gpu_memory_total_bytes: memory in use by all processes, and all memory, by GPU.
    """

    seconds: float
    build: str
    started_unix_s: float
    front_ends: int
    in_progress: int
    refused_per_s: dict[str, float]
    errors_without_model_per_s: dict[str, float]
    versions: list[VersionActivity]
    device_shares: dict[str, dict[ModelVersion, float]]
    gpu_memory_used_bytes: dict[str, float]
    gpu_memory_total_bytes: dict[str, float]


def read_page(page: str) -> Reading:
    """Read a metrics page, and keep the series of `Series`.

    Raises:
        ValueError: the page is not the metrics page of a Headwaiter server.
    """
    from prometheus_client.parser import text_string_to_metric_families

    # Parsing takes most of the time of a view, and half of the page is of other series.
    lines = [line for line in page.split("\n") if line.startswith(tuple(Series))]
    reading: dict[Series, dict[Labels, float]] = {series: {} for series in Series}
    for family in text_string_to_metric_families("\n".join(lines)):
        for sample in family.samples:
            # Other programs may write such a page, with values that no server has.
            if sample.name in reading and math.isfinite(sample.value):
                labels = tuple(sorted((name, printable(value)) for name, value in sample.labels.items()))
                reading[Series(sample.name)][labels] = sample.value
    if not reading[Series.BUILD]:
        raise ValueError("it is not the metrics page of a Headwaiter server")
    return reading


def activity(before: Reading, now: Reading, seconds: float) -> ServerActivity:
    """Return what a server did between two readings, and what it is doing at the second one.

    Args:
        before: the first reading.
        now: the second reading.
        seconds: seconds between the two readings.
    """
    grown = _increases(before, now)
    grown_by_version = _by_version(grown)
    versions = [
        _version_activity(version, reading, grown_by_version[version], seconds)
        for version, reading in _by_version(now).items()
        if reading[Series.STATES]
    ]
    refused = _by_label(grown[Series.REFUSED], "reason")
    without_model = {labels: count for labels, count in grown[Series.REQUESTS].items() if not dict(labels).get("model")}
    return ServerActivity(
        seconds=seconds,
        build=", ".join(_by_label(now[Series.BUILD], "version")),
        started_unix_s=now[Series.STARTED].get(_ENGINE, math.nan),
        front_ends=int(_total(now[Series.FRONT_ENDS])),
        in_progress=int(_total(now[Series.IN_PROGRESS])),
        refused_per_s={reason: requests / seconds for reason, requests in refused.items() if requests},
        errors_without_model_per_s=_errors_per_s(_by_label(without_model, "code"), seconds),
        versions=sorted(versions, key=lambda each: (-each.device_share, each.model, each.version)),
        device_shares=_device_shares(grown[Series.BUSY_SECONDS], seconds),
        gpu_memory_used_bytes=_by_label(now[Series.GPU_MEMORY_USED], "gpu"),
        gpu_memory_total_bytes=_by_label(now[Series.GPU_MEMORY_TOTAL], "gpu"),
    )


def quantile(fraction: float, counts: Mapping[float, float]) -> float:
    """Return a quantile of a histogram as Prometheus' histogram_quantile does; NaN if nothing was counted.

    Args:
        fraction: the quantile; 0.5 is the median.
        counts: number of values up to each upper bound; the highest bound is infinity.
    """
    bounds = sorted(counts)
    # Some counters of the histogram may have started again, and be smaller than those of lower bounds.
    below = [0.0, *accumulate((counts[bound] for bound in bounds), max)]
    if len(bounds) < 2 or not below[-1]:
        return math.nan
    rank = fraction * below[-1]
    bucket = bisect_left(below, rank) - 1
    if bounds[bucket] == math.inf:
        return bounds[-2]
    lower = bounds[bucket - 1] if bucket else 0.0
    return lower + (bounds[bucket] - lower) * (rank - below[bucket]) / (below[bucket + 1] - below[bucket])


def _increases(before: Reading, now: Reading) -> Reading:
    """Return by how much each counter grew; a counter that has become smaller has started again from 0."""
    if before[Series.STARTED].get(_ENGINE) != now[Series.STARTED].get(_ENGINE):
        return now  # The server was started again, and all its counters with it.

    def increase(value: float, earlier: float) -> float:
        return value - earlier if value >= earlier else value

    return {
        series: {labels: increase(value, before[series].get(labels, 0.0)) for labels, value in values.items()}
        for series, values in now.items()
    }


def _version_activity(version: ModelVersion, now: Reading, grown: Reading, seconds: float) -> VersionActivity:
    """Return the activity of one version, whose series alone the reading and the increases hold."""
    requests = _by_label(grown[Series.REQUESTS], "code")
    counts = _by_label(
        {
            labels: count
            for labels, count in grown[Series.DURATIONS].items()
            if _BATCHED_METHODS.fullmatch(dict(labels).get("method", ""))
        },
        "le",
    )
    counts_by_bound = {float(bound): count for bound, count in counts.items()}
    stages_s, batches = _by_label(grown[Series.STAGE_SECONDS], "stage"), _total(grown[Series.BATCHES])
    model, number = version
    return VersionActivity(
        model=model,
        version=number,
        states=[state for state, value in _by_label(now[Series.STATES], "state").items() if value],
        requests_per_s=sum(requests.values()) / seconds,
        errors_per_s=_errors_per_s(requests, seconds),
        p50_s=quantile(0.5, counts_by_bound),
        p99_s=quantile(0.99, counts_by_bound),
        stage_shares={stage: _ratio(stage_s, sum(stages_s.values())) for stage, stage_s in stages_s.items()},
        queue_sequences=_total(now[Series.QUEUE_SEQUENCES]),
        queue_tokens=_total(now[Series.QUEUE_TOKENS]),
        estimated_wait_s=_total(now[Series.ESTIMATED_WAIT]),
        tokens_per_s=_total(grown[Series.BATCH_TOKENS]) / seconds,
        batch_sequences=_ratio(_total(grown[Series.BATCH_SEQUENCES]), batches),
        batch_tokens=_ratio(_total(grown[Series.BATCH_TOKENS]), batches),
        padding=_ratio(_total(grown[Series.BATCH_PADDING]), batches),
        device_share=_total(grown[Series.BUSY_SECONDS]) / seconds,
    )


def _errors_per_s(requests: Mapping[str, float], seconds: float) -> dict[str, float]:
    """Return the rates of the codes of errors that occurred."""
    return {code: count / seconds for code, count in requests.items() if code != "OK" and count}


def _device_shares(busy_s: Mapping[Labels, float], seconds: float) -> dict[str, dict[ModelVersion, float]]:
    """Return the share of each device that each version of a model used, the largest first, by device."""
    shares: dict[str, dict[ModelVersion, float]] = defaultdict(dict)
    for labels, each_s in sorted(busy_s.items(), key=lambda item: -item[1]):
        names = dict(labels)
        used = shares[names.get("device", "")]
        if each_s:
            used[names.get("model", ""), names.get("version", "")] = each_s / seconds
    return dict(sorted(shares.items(), key=lambda item: (len(item[0]), item[0])))  # 2 before 10.


def _by_version(reading: Reading) -> dict[ModelVersion, Reading]:
    """Return the series of each version of a model."""
    parts: dict[ModelVersion, dict[Series, dict[Labels, float]]] = defaultdict(lambda: {each: {} for each in Series})
    for series, values in reading.items():
        for labels, value in values.items():
            names = dict(labels)
            parts[names.get("model", ""), names.get("version", "")][series][labels] = value
    return dict(parts)


def _by_label(values: Mapping[Labels, float], label: str) -> dict[str, float]:
    """Return the sums of the values that have the same value of a label."""
    sums: dict[str, float] = defaultdict(float)
    for labels, value in values.items():
        sums[dict(labels).get(label, "")] += value
    return dict(sums)


def _total(values: Mapping[Labels, float]) -> float:
    return sum(values.values())


def _ratio(part: float, whole: float) -> float:
    """Return a part of a whole; NaN if the whole is 0."""
    return part / whole if whole else math.nan


def printable(text: str) -> str:
    """Return a text without characters that a terminal could take for commands."""
    return "".join(character if character.isprintable() else "?" for character in text)
