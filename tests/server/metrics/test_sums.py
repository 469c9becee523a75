"""One page of metrics for several processes: each series is the sum of all processes."""

import re

import pytest
from prometheus_client import generate_latest
from prometheus_client.exposition import choose_encoder
from prometheus_client.parser import text_string_to_metric_families

from headwaiter_proto.encoder_pb2 import Timings
from headwaiter_server.metrics.recorder import Recorder
from headwaiter_server.metrics.sums import (
    Samples,
    SummedMetrics,
    add_samples,
    read_samples,
    without_gauges,
)


def recorder(models: tuple[str, ...], requests: int, process: str = "engine") -> Recorder:
    """Return a recorder that has counted requests to models, and one that is in progress."""
    made = Recorder(process=process)
    for model in models:
        for _ in range(requests):
            made.received()
            made.finished((model, "1"), "Encode", "OK", 0.01)
    made.received()
    return made


def values(page: bytes) -> Samples:
    families = text_string_to_metric_families(page.decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_each_series_is_the_sum_of_all_processes() -> None:
    one, two = recorder(("a",), 2), recorder(("a", "b"), 3)
    summed = values(generate_latest(SummedMetrics(one.registry, [read_samples(two.registry)[0]])))
    parts = [values(generate_latest(each.registry)) for each in (one, two)]
    for series, value in summed.items():
        if not series[0].startswith("process_"):  # These change between two readings.
            assert value == sum(part.get(series, 0.0) for part in parts), series
    counted = ("headwaiter_requests_total", (("code", "OK"), ("method", "Encode"), ("model", "a"), ("version", "1")))
    assert summed[counted] == 5
    assert summed["headwaiter_inflight_requests", ()] == 2


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text; version=1.0.0"])
def test_a_model_that_only_another_process_knows_has_whole_histograms_in_order(accept: str) -> None:
    encode, _ = choose_encoder(accept)
    other = read_samples(recorder(("new",), 1).registry)[0]
    page = encode(SummedMetrics(Recorder().registry, [other])).decode()
    lines = [line for line in page.splitlines() if line.startswith("headwaiter_request_duration_seconds")]
    bounds = [line.split('le="')[1].split('"')[0] for line in lines if "_bucket" in line]
    assert [float(bound) for bound in bounds] == sorted(map(float, bounds))
    (own,) = [
        each for each in recorder(("new",), 1).registry.collect() if each.name == "headwaiter_request_duration_seconds"
    ]
    assert (len(bounds), bounds[-1]) == (sum("le" in each.labels for each in own.samples), "+Inf")
    assert {line.split("{")[0].rpartition("_")[2] for line in lines} == {"bucket", "count", "sum"}


def test_each_process_has_its_own_memory_start_time_and_certificate() -> None:
    one, two = recorder(("a",), 1), recorder(("a",), 1, process="front end 2")
    one.certificate_read(2e9)
    two.certificate_read(3e9)
    summed = values(generate_latest(SummedMetrics(one.registry, [read_samples(two.registry)[0]])))
    expiry = "headwaiter_tls_certificate_expiry_timestamp_seconds"
    assert summed[expiry, (("process", "engine"),)] == 2e9
    assert summed[expiry, (("process", "front end 2"),)] == 3e9
    starts = {labels: value for (name, labels), value in summed.items() if name == "process_start_time_seconds"}
    assert starts.keys() == {(("process", "engine"),), (("process", "front end 2"),)}
    # Both recorders are of this process, so each value is a time of day, and not the sum of two.
    assert len(set(starts.values())) == 1
    ended = without_gauges(read_samples(two.registry)[0])
    assert {name for name, _ in ended if name.startswith("process_")} == {"process_cpu_seconds_total"}


def test_openmetrics_shows_an_exemplar_of_this_process_or_the_latest_of_the_others() -> None:
    recorders = [Recorder() for _ in range(3)]
    for number, duration_s in enumerate((0.01, 0.01, 5.0)):
        recorders[number].received()
        exemplar = {"trace_id": f"{number:032x}", "span_id": f"{number:016x}"}
        recorders[number].finished(("a", "1"), "Encode", "OK", duration_s, exemplar)
    own, *others = recorders
    exemplars = [read_samples(each.registry)[1] for each in others]
    for engine, shown in ((own, [0, 2]), (Recorder(), [1, 2])):
        summed = SummedMetrics(engine.registry, [read_samples(each.registry)[0] for each in others], exemplars)
        encode, _ = choose_encoder("application/openmetrics-text; version=1.0.0")
        traces = re.findall('trace_id="(.+?)"', encode(summed).decode())
        assert [int(trace, 16) for trace in traces] == shown
        assert "trace_id" not in generate_latest(summed).decode()


def test_only_counters_and_histograms_outlive_a_process() -> None:
    ended = without_gauges(read_samples(recorder(("a",), 2).registry)[0])
    assert "headwaiter_inflight_requests" not in {name for name, _ in ended}
    twice = add_samples([ended, ended])
    assert twice == {key: 2 * value for key, value in ended.items()}


def test_a_front_end_sends_only_the_series_of_models_that_it_has_used() -> None:
    one = Recorder()
    models = [one.model(f"model {number}", "1") for number in range(100)]
    assert {dict(labels).get("model") for _, labels in read_samples(one.registry)[0]} == {None}
    models[7].stages(Timings(tokenize_s=0.01))
    one.received()
    one.finished(("model 7", "1"), "Encode", "OK", 0.01)
    used = {dict(labels).get("model") for _, labels in read_samples(one.registry)[0]}
    assert used == {None, "model 7"}
