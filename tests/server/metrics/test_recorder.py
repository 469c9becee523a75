"""The metrics count and time requests, sequences and batches, in base units."""

from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from headwaiter_server.metrics.model_recorder import STAGES, ModelRecorder
from headwaiter_server.metrics.recorder import Recorder
from headwaiter_server.scheduling.adaptive_limits import AdaptiveLimits
from headwaiter_server.scheduling.cost import BatchLimits, LearntCost, Shape
from headwaiter_server.scheduling.planner import CloseReason
from tests.server.rpc.stand_ins import CALIBRATION, model, sample

TINY = {"model": "tiny", "version": "1"}
CORRECTION = 1.5


class Queue:
    queued_sequences, queued_tokens = 3, 40

    def __init__(self) -> None:
        self.learnt = LearntCost(CALIBRATION.cost)
        self.learnt.ratio = CORRECTION
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


def _names(recorder: Recorder) -> dict[str, str]:
    text = generate_latest(recorder.registry).decode()
    families = text_string_to_metric_families(text)
    return {family.name: family.type for family in families if not family.name.endswith("_created")}


def test_metric_names_and_types_stay_the_same_for_dashboards(recorder: Recorder) -> None:
    # The parser gives the name of a counter without its `_total`.
    assert _names(recorder) == {
        "headwaiter_requests": "counter",
        "headwaiter_request_duration_seconds": "histogram",
        "headwaiter_stage_duration_seconds": "histogram",
        "headwaiter_attend_stage_duration_seconds": "histogram",
        "headwaiter_batch_sequences": "histogram",
        "headwaiter_batch_tokens": "histogram",
        "headwaiter_batch_padding_ratio": "histogram",
        "headwaiter_batch_cost_seconds": "gauge",
        "headwaiter_token_budget": "gauge",
        "headwaiter_service_tokens_per_second": "gauge",
        "headwaiter_calibration_error_ratio": "gauge",
        "headwaiter_refused": "counter",
        "headwaiter_expired": "counter",
        "headwaiter_inflight_requests": "gauge",
        "headwaiter_batch_cost_error_ratio": "histogram",
        "headwaiter_batches_closed": "counter",
        "headwaiter_batches_failed": "counter",
        "headwaiter_cost_correction_ratio": "gauge",
        "headwaiter_batch_limits_ratio": "gauge",
        "headwaiter_gpu_memory_used_bytes": "gauge",
        "headwaiter_gpu_memory_total_bytes": "gauge",
        "headwaiter_queue_sequences": "gauge",
        "headwaiter_queue_tokens": "gauge",
        "headwaiter_estimated_wait_seconds": "gauge",
        "headwaiter_model_info": "gauge",
        "headwaiter_self_check": "gauge",
        "headwaiter_provider_fallback": "gauge",
    }


def test_a_request_is_in_flight_until_it_finishes_then_counted_and_timed(recorder: Recorder) -> None:
    recorder.received()
    recorder.received()
    recorder.finished(("tiny", "1"), "Encode", "OK", 0.25)
    assert sample(recorder, "inflight_requests") == 1
    assert sample(recorder, "requests_total", **TINY, method="Encode", code="OK") == 1
    assert sample(recorder, "request_duration_seconds_sum", **TINY, method="Encode") == 0.25


def test_every_stage_is_exposed_before_the_first_request(recorder: Recorder) -> None:
    for stage in STAGES:
        assert sample(recorder, "stage_duration_seconds_count", **TINY, stage=stage) == 0


@pytest.mark.parametrize(
    ("name", "labels", "reasons"),
    [
        ("refused_total", {}, ["INVALID_INPUT", "SEQUENCE_TOO_LONG", "MODEL_NOT_FOUND", "OVERLOADED", "UNAVAILABLE"]),
        ("batches_closed_total", TINY, ["budget", "cells", "urgent", "drained"]),
        ("batches_failed_total", TINY, ["sequence", "size", "unknown"]),
    ],
)
def test_every_reason_is_exposed_before_it_occurs(
    recorder: Recorder, name: str, labels: dict[str, str], reasons: list[str]
) -> None:
    assert [sample(recorder, name, **labels, reason=reason) for reason in reasons] == [0] * len(reasons)


def test_a_batch_records_its_sequences_tokens_and_padding(recorder: Recorder, batches: ModelRecorder) -> None:
    batches.batch_ran(Shape.of([2, 4]), predicted_s=0.5, actual_s=0.4)
    assert sample(recorder, "batch_sequences_sum", **TINY) == 2
    assert sample(recorder, "batch_tokens_sum", **TINY) == 6
    assert sample(recorder, "batch_padding_ratio_sum", **TINY) == pytest.approx(1 - (2**2 + 4**2) / (2 * 4**2))
    assert sample(recorder, "batch_cost_error_ratio_sum", **TINY) == pytest.approx(0.25)


def test_batches_are_counted_by_their_close_reason(recorder: Recorder, batches: ModelRecorder) -> None:
    batches.batch_closed(CloseReason.BUDGET)
    assert sample(recorder, "batches_closed_total", **TINY, reason="budget") == 1


@pytest.mark.parametrize(("predicted_s", "error"), [(1.0, 0.5), (3.0, 0.5), (2.0, 0.0)])
def test_the_error_of_a_prediction_is_relative_to_the_actual_time(
    recorder: Recorder, predicted_s: float, error: float, batches: ModelRecorder
) -> None:
    batches.batch_ran(Shape.of([2]), predicted_s, actual_s=2.0)
    assert sample(recorder, "batch_cost_error_ratio_sum", **TINY) == error
    batches.batch_ran(Shape.of([2]), predicted_s, actual_s=0.0)
    assert sample(recorder, "batch_cost_error_ratio_count", **TINY) == 1


def test_each_term_of_the_batch_cost_is_exposed(recorder: Recorder) -> None:
    terms = {"launch": 1.0, "token": 0.5, "padded": 0.25, "cell": 0.125, "hidden_row": 0.0625}
    assert {term: sample(recorder, "batch_cost_seconds", **TINY, term=term) for term in terms} == terms
    assert sample(recorder, "token_budget", **TINY) == 2
    assert sample(recorder, "batch_limits_ratio", **TINY) == 0.5
    assert sample(recorder, "service_tokens_per_second", **TINY) == 0.75
    assert sample(recorder, "cost_correction_ratio", **TINY) == CORRECTION
    assert sample(recorder, "calibration_error_ratio", **TINY) == 0.0625


def test_refusals_are_counted_by_reason_and_expired_sequences_in_total(
    recorder: Recorder, batches: ModelRecorder
) -> None:
    recorder.refused("OVERLOADED")
    batches.expired(3)
    assert sample(recorder, "refused_total", reason="OVERLOADED") == 1
    assert sample(recorder, "expired_total", **TINY) == 3


def test_the_queue_is_read_at_each_scrape(recorder: Recorder) -> None:
    assert sample(recorder, "queue_sequences", **TINY) == 3
    assert sample(recorder, "queue_tokens", **TINY) == 40
    assert sample(recorder, "estimated_wait_seconds", **TINY) == 0.5


def test_the_model_its_self_check_and_its_fallback_to_the_cpu_are_exposed(recorder: Recorder) -> None:
    assert sample(recorder, "model_info", **TINY, digest="ab" * 32, provider="cpu", graph="g.onnx") == 1
    assert sample(recorder, "self_check", **TINY, measure="pooled_max_abs") == 0.5
    assert sample(recorder, "self_check", **TINY, measure="hidden_max_abs") == 0.125
    assert sample(recorder, "self_check", **TINY, measure="pooled_max_relative") == 0.25
    assert sample(recorder, "self_check", **TINY, measure="hidden_max_relative") == 0.0625
    assert sample(recorder, "self_check", **TINY, measure="min_cosine") == 0.75
    assert sample(recorder, "self_check", **TINY, measure="mean_cosine") == 0.875
    assert sample(recorder, "provider_fallback", **TINY) == 1


@pytest.mark.parametrize(
    ("name", "labels", "smallest", "largest"),
    [
        ("request_duration_seconds", {**TINY, "method": "Encode"}, "0.00025", "30.0"),
        ("stage_duration_seconds", {**TINY, "stage": "compute"}, "0.00025", "30.0"),
        ("batch_tokens", TINY, "1.0", "131072.0"),
        ("batch_sequences", TINY, "1.0", "4096.0"),
        ("batch_cost_error_ratio", TINY, "0.05", "2.0"),
    ],
)
def test_histogram_buckets_cover_the_usual_range(
    recorder: Recorder, name: str, labels: dict[str, str], smallest: str, largest: str
) -> None:
    recorder.received()
    recorder.finished(("tiny", "1"), "Encode", "OK", 0.25)
    assert sample(recorder, f"{name}_bucket", le=smallest, **labels) is not None
    assert sample(recorder, f"{name}_bucket", le=largest, **labels) is not None


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
