"""The metrics count and time requests, sequences and batches, in base units."""

import random
from collections.abc import Callable
from pathlib import Path
from statistics import quantiles
from threading import Thread

import pytest
from prometheus_client import generate_latest

from headwaiter_server.metrics.definitions import VersionStates
from headwaiter_server.metrics.model_recorder import STAGES, ModelRecorder
from headwaiter_server.metrics.recorder import Recorder
from headwaiter_server.metrics.totals import ModelStatistics
from headwaiter_server.models.model_version import ModelState, VersionStatus
from headwaiter_server.scheduling.adaptive_limits import AdaptiveLimits
from headwaiter_server.scheduling.cost import BatchLimits, LearntCost, Shape
from headwaiter_server.scheduling.planner import CloseReason
from tests.support.server.stand_ins import CALIBRATION, model, sample

TINY = {"model": "tiny", "version": "1"}
CORRECTION = 1.5


class Queue:
    queued_sequences, queued_tokens = 3, 40

    def __init__(self) -> None:
        self.learnt = LearntCost(CALIBRATION.cost)
        shape = Shape.of([8])
        for _ in range(31):
            self.learnt.note_batch(shape, CORRECTION * CALIBRATION.cost.seconds(*shape))
        self.limits = AdaptiveLimits(BatchLimits(tokens=2, cells=50))


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture(autouse=True)
def batches(recorder: Recorder, tmp_path: Path) -> ModelRecorder:
    """The recorder of version 1 of the model "tiny"."""
    batches = recorder.model("tiny", "1")
    batches.serving(model(tmp_path), CALIBRATION, Queue(), lambda: 0.5)
    return batches


def test_before_the_first_request_the_model_its_queue_and_every_counter_are_exposed(recorder: Recorder) -> None:
    reasons = ["INVALID_INPUT", "SEQUENCE_TOO_LONG", "MODEL_NOT_FOUND", "OVERLOADED", "UNAVAILABLE"]
    measures = {"pooled_max_abs": 0.5, "hidden_max_abs": 0.125, "pooled_max_relative": 0.25}
    measures |= {"hidden_max_relative": 0.0625, "min_cosine": 0.75, "mean_cosine": 0.875}
    terms = {"launch": 1.0, "token": 0.5, "padded": 0.25, "cell": 0.125, "hidden_row": 0.0625}
    expected: list[tuple[str, dict[str, str], float]] = [
        ("token_budget", {}, 2),
        ("batch_limits_ratio", {}, 0.5),
        ("service_tokens_per_second", {}, 0.75),
        ("cost_correction_ratio", {}, CORRECTION),
        ("calibration_error_ratio", {}, 0.0625),
        ("queue_sequences", {}, 3),
        ("queue_tokens", {}, 40),
        ("estimated_wait_seconds", {}, 0.5),
        ("model_info", {"digest": "ab" * 32, "provider": "cpu", "graph": "g.onnx"}, 1),
        ("provider_fallback", {}, 1),
        *(("batch_cost_seconds", {"term": term}, seconds) for term, seconds in terms.items()),
        *(("self_check", {"measure": measure}, value) for measure, value in measures.items()),
        *(("stage_duration_seconds_count", {"stage": stage}, 0) for stage in STAGES),
        *(("batches_closed_total", {"reason": reason}, 0) for reason in ("budget", "cells", "urgent", "drained")),
        *(("batches_failed_total", {"reason": reason}, 0) for reason in ("sequence", "size", "unknown")),
    ]
    for name, labels, value in expected:
        assert sample(recorder, name, **TINY, **labels) == value, (name, labels)
    assert [sample(recorder, "refused_total", reason=reason) for reason in reasons] == [0] * len(reasons)


def test_histogram_buckets_cover_the_usual_range(recorder: Recorder) -> None:
    recorder.received()
    recorder.finished(("tiny", "1"), "Encode", "OK", 0.25)
    for name, labels, smallest, largest in (
        ("request_duration_seconds", {"method": "Encode"}, "0.0005", "70.0"),
        ("stage_duration_seconds", {"stage": "compute"}, "0.0005", "70.0"),
        ("batch_run_seconds", {}, "0.0005", "70.0"),
        ("batch_tokens", {}, "1.0", "131072.0"),
        ("batch_sequences", {}, "1.0", "4096.0"),
        ("batch_cost_error_ratio", {}, "0.05", "2.0"),
    ):
        for bound in (smallest, largest):
            assert sample(recorder, f"{name}_bucket", le=bound, **TINY, **labels) is not None, (name, bound)


def test_refusals_expired_sequences_and_close_reasons_are_counted(recorder: Recorder, batches: ModelRecorder) -> None:
    recorder.refused("OVERLOADED")
    batches.expired(3)
    batches.batch_planned(CloseReason.BUDGET)
    assert sample(recorder, "refused_total", reason="OVERLOADED") == 1
    assert sample(recorder, "expired_total", **TINY) == 3
    assert sample(recorder, "batches_closed_total", **TINY, reason="budget") == 1


def test_a_request_is_in_flight_until_it_finishes_then_counted_and_timed(recorder: Recorder) -> None:
    recorder.received()
    recorder.received()
    recorder.finished(("tiny", "1"), "Encode", "OK", 0.25)
    assert sample(recorder, "inflight_requests") == 1
    assert sample(recorder, "requests_total", **TINY, method="Encode", code="OK") == 1
    assert sample(recorder, "request_duration_seconds_sum", **TINY, method="Encode") == 0.25
    # Alerts are about these codes.
    for code in ("DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"):
        assert sample(recorder, "requests_total", **TINY, method="Encode", code=code) == 0


@pytest.mark.parametrize(
    "latency_s",
    [
        lambda random: random.lognormvariate(-5, 0.5),
        lambda random: random.expovariate(2.0),
        # Under overload, most answers come just before a deadline of 5 s.
        lambda random: 5.0 - min(4.9, random.expovariate(4.0)),
        lambda random: random.gauss(0.0123, 0.001),
    ],
)
def test_quantiles_of_the_histogram_are_within_a_tenth_of_those_of_the_latencies(
    recorder: Recorder, latency_s: Callable[[random.Random], float]
) -> None:
    chance = random.Random(1)
    latencies_s = [latency_s(chance) for _ in range(5000)]
    for latency in latencies_s:
        recorder.received()
        recorder.finished(("tiny", "1"), "Encode", "OK", latency)
    cuts = quantiles(latencies_s, n=100)
    for percent in (50, 99):
        assert histogram_quantile(recorder, percent / 100) == pytest.approx(cuts[percent - 1], rel=0.1), percent


def histogram_quantile(recorder: Recorder, quantile: float) -> float:
    """Return a quantile of the durations of Encode as Prometheus' histogram_quantile does."""
    page = generate_latest(recorder.registry).decode()
    counts = [
        (float(line.split('le="')[1].split('"')[0]), float(line.rsplit(" ", 1)[1]))
        for line in page.splitlines()
        if line.startswith("headwaiter_request_duration_seconds_bucket")
    ]
    rank, lower_s, below = quantile * counts[-1][1], 0.0, 0.0
    for upper_s, count in counts:
        if count >= rank:
            return lower_s + (upper_s - lower_s) * (rank - below) / (count - below)
        lower_s, below = upper_s, count
    raise AssertionError("the bucket +Inf holds all")


def test_the_time_of_a_device_counts_for_the_model_whose_batch_ran(recorder: Recorder, batches: ModelRecorder) -> None:
    batches.batch_ran(Shape.of([2]), 1.0, actual_s=0.5)
    batches.device_ran(0, 0.5)
    batches.device_ran(1, 0.25)
    batches.device_ran(0, 1.0)
    assert sample(recorder, "device_busy_seconds_total", **TINY, device="0") == 1.5
    assert sample(recorder, "device_busy_seconds_total", **TINY, device="1") == 0.25
    assert sample(recorder, "batch_run_seconds_sum", **TINY) == 0.5


def test_the_states_of_versions_are_read_at_each_scrape() -> None:
    recorder, versions = Recorder(), [VersionStatus("tiny", 1, ModelState.READY)]
    recorder.registry.register(VersionStates(lambda: versions))
    assert _states(recorder) == {"1": {"ready"}}
    (family,) = [each for each in recorder.registry.collect() if each.name == "headwaiter_version_state"]
    assert {each.labels["state"] for each in family.samples} == {"on_disk", "loading", "ready", "draining", "failed"}
    versions.append(VersionStatus("tiny", 2, ModelState.FAILED, "no graph"))
    assert _states(recorder) == {"1": {"ready"}, "2": {"failed"}}
    # Version 1 is loaded again from other files, and answers requests until then.
    versions[1:] = [VersionStatus("tiny", 1)]
    assert _states(recorder) == {"1": {"ready", "loading"}}


def _states(recorder: Recorder) -> dict[str, set[str]]:
    """Return the states of each version of the model "tiny", which has one series for each state."""
    (family,) = [each for each in recorder.registry.collect() if each.name == "headwaiter_version_state"]
    labels = [tuple(sorted(sample.labels.items())) for sample in family.samples]
    assert len(labels) == len(set(labels))
    states: dict[str, set[str]] = {}
    for each in family.samples:
        assert each.labels["model"] == "tiny"
        states.setdefault(each.labels["version"], set())
        if each.value:
            states[each.labels["version"]].add(each.labels["state"])
    return states


def test_a_batch_records_its_sequences_tokens_and_padding(recorder: Recorder, batches: ModelRecorder) -> None:
    batches.batch_ran(Shape.of([2, 4]), predicted_s=0.5, actual_s=0.4)
    assert sample(recorder, "batch_sequences_sum", **TINY) == 2
    assert sample(recorder, "batch_tokens_sum", **TINY) == 6
    assert sample(recorder, "batch_padding_ratio_sum", **TINY) == pytest.approx(1 - (2**2 + 4**2) / (2 * 4**2))
    assert sample(recorder, "batch_cost_error_ratio_sum", **TINY) == pytest.approx(0.25)


@pytest.mark.parametrize(("predicted_s", "error"), [(1.0, 0.5), (3.0, 0.5), (2.0, 0.0)])
def test_the_error_of_a_prediction_is_relative_to_the_actual_time(
    recorder: Recorder, predicted_s: float, error: float, batches: ModelRecorder
) -> None:
    batches.batch_ran(Shape.of([2]), predicted_s, actual_s=2.0)
    assert sample(recorder, "batch_cost_error_ratio_sum", **TINY) == error
    batches.batch_ran(Shape.of([2]), predicted_s, actual_s=0.0)
    assert sample(recorder, "batch_cost_error_ratio_count", **TINY) == 1


def test_the_series_of_a_version_end_when_the_version_is_unloaded(recorder: Recorder, batches: ModelRecorder) -> None:
    other = recorder.model("tiny", "2")
    for version, recorded in (("1", batches), ("2", other)):
        recorded.batch_ran(Shape.of([2]), 1.0, 1.0)
        recorder.received()
        recorder.finished(("tiny", version), "Encode", "OK", 0.25)
    recorder.remove_model("tiny", "1")
    assert not [line for line in generate_latest(recorder.registry).decode().splitlines() if 'version="1"' in line]
    assert sample(recorder, "batch_tokens_sum", model="tiny", version="2") == 2
    assert sample(recorder, "requests_total", model="tiny", version="2", method="Encode", code="OK") == 1
    recorder.received()
    recorder.finished(("tiny", "2"), "Encode", "OK", 0.25)
    assert sample(recorder, "requests_total", model="tiny", version="2", method="Encode", code="OK") == 2


def test_threads_lose_no_request() -> None:
    statistics = ModelStatistics()

    def answer() -> None:
        for _ in range(1000):
            statistics.request_answered(1.0, {"queue": 1.0})

    threads = [Thread(target=answer) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statistics.totals().stages["queue"].count == 4000
