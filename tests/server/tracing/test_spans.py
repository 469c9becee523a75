"""The waits of a request are what its stages leave uncovered; names follow the semantic conventions."""

import pytest

from headwaiter_server.scheduling.queued_request import Interval
from headwaiter_server.tracing.spans import _named, gaps


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


@pytest.mark.parametrize(
    ("method", "name", "attributes"),
    [
        ("Classify", "headwaiter.v1.Encoder/Classify", {"rpc.method": "headwaiter.v1.Encoder/Classify"}),
        ("ModelInfer", "inference.GRPCInferenceService/ModelInfer", {"rpc.system.name": "grpc"}),
        # A method that the server does not have.
        ("other", "grpc", {"rpc.method": "_OTHER"}),
        ("POST /", "POST /", {"http.request.method": "POST", "http.route": "/", "url.scheme": "https"}),
    ],
)
def test_the_span_of_a_method_has_the_name_of_the_semantic_conventions(
    method: str, name: str, attributes: dict[str, str]
) -> None:
    found, given = _named("https", method)
    assert found == name
    assert given.items() >= attributes.items()
