"""The speed of the HTTP API against gRPC, and what the API costs callers of gRPC while nobody uses it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from bench.loads import http_calls, raw_calls
from bench.loads.traces import Ids
from bench.measure import HEADWAITER, Fleet, Measurement, ServerSetup, measure, ratio
from bench.processes import in_turn
from bench.rounds import Rounds
from bench.run import Run
from bench.studies.front_end import NULL
from bench.studies.throughput import REQUESTERS
from headwaiter_client.cli.load_generator import Load

SEQUENCE: Ids = np.arange(1000, 1020)
# Two processes of the same code can differ in speed by a tenth for their whole lifetime.
_FLEETS_PER_ROUND, _PAIRS_PER_FLEET = 2, 2
_MINILM, _NULL = "all-MiniLM-L6-v2", "null model"
_SETUPS = {_MINILM: HEADWAITER, _NULL: NULL}
_WARM_UP_REQUESTS = 50

Pair = tuple[list[Measurement], list[Measurement]]


@dataclass(frozen=True)
class HttpSpeed:
    """HTTP / gRPC with 32 requesters: requests per second, and CPU time of the server per request."""

    model: str
    sequences: int
    requests: Rounds
    cpu: Rounds


@dataclass(frozen=True)
class UnusedHttp:
    """gRPC with / without the HTTP API: requests per second, p99, and CPU time of the server per request."""

    model: str
    requesters: int
    requests: Rounds
    p99: Rounds
    cpu: Rounds


@dataclass(frozen=True)
class _RepeatedRequest:
    """A load of equal requests, and the server that answers them; `requests` take about two seconds."""

    setup: ServerSetup
    requests: int
    requesters: int = REQUESTERS
    sequences: int = 1
    over_http: bool = False

    def measure(self, fleet: Fleet) -> Measurement:
        server = fleet[self.setup]

        def send(address: str) -> Load:
            to_send = [SEQUENCE] * self.sequences * self.requests
            if self.over_http:
                load = http_calls.closed_loop(server.metrics_url, to_send, self.requesters, self.sequences)
            else:
                load = raw_calls.closed_loop(address, to_send, self.requesters, self.sequences)
            raw_calls.raise_first_error(load)
            return load

        return measure(server, send)


def http(run: Run) -> list[HttpSpeed]:
    """Measure HTTP and gRPC in turn, on the same servers."""
    loads = [
        (model, _RepeatedRequest(with_http(_SETUPS[model]), requests, sequences=sequences))
        for model, sequences, requests in ((_MINILM, 1, 800), (_NULL, 1, 5000), (_NULL, 64, 400))
    ]
    measured = _in_turn(run, [(replace(load, over_http=True), load) for _, load in loads])
    return [
        HttpSpeed(model, load.sequences, ratio(*pair, "requests_per_s"), _cpu_ratio(pair))
        for (model, load), pair in zip(loads, measured, strict=True)
    ]


def unused_http(run: Run) -> list[UnusedHttp]:
    """Measure gRPC with and without the HTTP API in turn."""
    loads = [
        (model, _RepeatedRequest(_SETUPS[model], requests, requesters))
        for model, requesters, requests in ((_MINILM, 1, 300), (_MINILM, 32, 800), (_NULL, 1, 2000), (_NULL, 32, 5000))
    ]
    measured = _in_turn(run, [(replace(load, setup=with_http(load.setup)), load) for _, load in loads])
    rows = []
    for (model, load), pair in zip(loads, measured, strict=True):
        requests = ratio(*pair, "requests_per_s")
        findings = run.figures.findings.of_part(f"{model}, {load.requesters} requester{'s' * (load.requesters > 1)}")
        findings.require("requests/s over gRPC: with / without --http-api on", requests, "≥", 0.95)
        rows.append(UnusedHttp(model, load.requesters, requests, ratio(*pair, "p99_ms"), _cpu_ratio(pair)))
    return rows


def with_http(setup: ServerSetup) -> ServerSetup:
    """Return a server that also answers over HTTP."""
    return replace(setup, name=f"{setup.name}, HTTP API", flags=("--http-api", "on"))


def _in_turn(run: Run, pairs: Sequence[tuple[_RepeatedRequest, _RepeatedRequest]]) -> list[Pair]:
    """Measure the loads of each pair in turn, with new servers several times."""
    measured: list[Pair] = [([], []) for _ in pairs]
    for _ in range(_FLEETS_PER_ROUND * run.sizes.rounds):
        run.fleet.stop_all()
        for (first, second), collected in zip(pairs, measured, strict=True):
            for load in (first, second):
                replace(load, requests=_WARM_UP_REQUESTS).measure(run.fleet)
            turns = in_turn(partial(first.measure, run.fleet), partial(second.measure, run.fleet), _PAIRS_PER_FLEET)
            for old, new in zip(collected, turns, strict=True):
                old += new
    return measured


def _cpu_ratio(pair: Pair) -> Rounds:
    ours, theirs = pair
    return ratio(theirs, ours, "tokens_per_cpu_s")
