"""The histogram exposes the same text as prometheus_client's own histogram."""

import prometheus_client
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from headwaiter_server.histogram import Histogram

BOUNDS = (0.0, 0.25, 1.0, 30.0)


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.sampled_from([*BOUNDS, 0.1, 2.0, 31.0]))))
def test_the_exposed_text_equals_that_of_prometheus_client(values: list[tuple[str, float]]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    fast = Histogram("seconds", "Some text.", BOUNDS, ours, ["stage"])
    reference = prometheus_client.Histogram("seconds", "Some text.", ["stage"], buckets=BOUNDS, registry=theirs)
    for stage, value in values:
        fast.labels(stage).observe(value)
        reference.labels(stage).observe(value)
    assert generate_latest(ours) == generate_latest(theirs)


def test_a_histogram_without_labels_is_exposed_before_the_first_value() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    Histogram("tokens", "Some text.", BOUNDS, ours).labels()
    prometheus_client.Histogram("tokens", "Some text.", buckets=BOUNDS, registry=theirs)
    assert generate_latest(ours) == generate_latest(theirs)
