"""The waits of a request are what its stages leave uncovered; names follow the semantic conventions."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headwaiter_server.scheduling.job import BatchTimes, Interval, Job
from headwaiter_server.tracing import spans
from headwaiter_server.tracing.spans import Tracing, gaps

SAMPLED = f"00-{'4b' * 16}-{'f0' * 8}-01"


@dataclass(eq=False)
class Request:
    job: Job


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Keeps the spans that are sent."""
    exporter = InMemorySpanExporter()
    monkeypatch.setattr(spans, "_exporter", lambda: exporter)
    return exporter


@pytest.mark.parametrize(
    ("covered", "left"),
    [
        ([], [(0, 10)]),
        ([(0, 10)], []),
        ([(0, 4), (4, 10)], []),
        ([(1, 2), (4, 5)], [(0, 1), (2, 4), (5, 10)]),
        # Batches of one request run at the same time.
        ([(4, 8), (1, 6), (2, 3)], [(0, 1), (8, 10)]),
    ],
)
def test_gaps_are_what_no_interval_covers(covered: list[tuple[float, float]], left: list[tuple[float, float]]) -> None:
    assert gaps(Interval(0, 10), [Interval(*each) for each in covered]) == left


@pytest.mark.parametrize(("batches", "stages"), [(3, 8), (63, 128), (64, 0)])
async def test_a_request_of_very_many_batches_has_no_spans_of_stages(
    batches: int, stages: int, exporter: InMemorySpanExporter
) -> None:
    tracing = Tracing("engine", "http")
    request = tracing.start_request("Encode", SAMPLED, 0.0)
    assert request is not None
    times = [BatchTimes(Interval(at, at + 0.5), Interval(at + 0.5, at + 1)) for at in range(1, 1 + batches)]
    request.note_stages({"compute": batches / 2}, Interval(0.0, 1.0), times, 1.0 + batches)
    request.end(2.0 + batches, "OK", {}, "")
    await tracing.send_last_spans()
    *children, span = exporter.get_finished_spans()
    assert len(children) == stages
    assert span.attributes is not None
    assert span.attributes["headwaiter.compute_s"] == batches / 2


async def test_a_batch_links_to_all_of_its_sampled_requests(exporter: InMemorySpanExporter) -> None:
    tracing = Tracing("engine", "http")
    ids = [tracing.start_request("Encode", SAMPLED, 0.0) for _ in range(300)]
    requests = [Request(Job([], trace=each.ids)) for each in ids if each] + [Request(Job([]))]
    sequences: Any = tuple(SimpleNamespace(request=each, length_tokens=2, hidden=False) for each in requests)
    tracing.record_batch("tiny", "1", sequences, 0, 0.1, Interval(0.0, 1.0), 0.5, "")
    await tracing.send_last_spans()
    (batch,) = exporter.get_finished_spans()
    assert batch.attributes is not None
    assert (len(batch.links), batch.attributes["headwaiter.batch.requests"]) == (300, 301)
