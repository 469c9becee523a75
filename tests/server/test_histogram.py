"""Our histogram shows Prometheus what prometheus_client's own would show."""

import prometheus_client
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from headwaiter_server.histogram import Histogram

BOUNDS = (0.0, 0.25, 1.0, 30.0)


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.sampled_from([*BOUNDS, 0.1, 2.0, 31.0]))))
def test_whatever_is_observed_it_is_read_as_from_prometheus_clients_own(values: list[tuple[str, float]]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    fast = Histogram("seconds", "Some text.", BOUNDS, ours, ["stage"])
    usual = prometheus_client.Histogram("seconds", "Some text.", ["stage"], buckets=BOUNDS, registry=theirs)
    for stage, value in values:
        fast.labels(stage).observe(value)
        usual.labels(stage).observe(value)
    assert generate_latest(ours) == generate_latest(theirs)


def test_without_labels_it_is_shown_before_the_first_value() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    Histogram("tokens", "Some text.", BOUNDS, ours).labels()
    prometheus_client.Histogram("tokens", "Some text.", buckets=BOUNDS, registry=theirs)
    assert generate_latest(ours) == generate_latest(theirs)
