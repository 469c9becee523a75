"""What a server did between two readings of its metrics page."""

import math
from typing import Any

import pytest

from headwaiter_client.cli.activity import ServerActivity, VersionActivity, activity, quantile, read_page
from tests.support.client.metrics_pages import BUILD, page

READY: dict[str, float] = {"version_state{model=m,state=ready}": 1}
SECONDS = 2.0
INF = math.inf


def between(before: dict[str, float], now: dict[str, float]) -> ServerActivity:
    """Return the activity between two pages, 2 s apart."""
    return activity(read_page(page(before)), read_page(page(now)), SECONDS)


def of_m(before: dict[str, float], now: dict[str, float]) -> VersionActivity:
    """Return the activity of the model "m", which is ready."""
    (version,) = between(READY | before, READY | now).versions
    return version


@pytest.mark.parametrize(
    ("series", "field", "expected"),
    [
        # The methods are added up.
        (
            {
                "requests_total{model=m,method=Encode,code=OK}": (10, 16),
                "requests_total{model=m,method=Attend,code=OK}": (1, 3),
            },
            "requests_per_s",
            4.0,
        ),
        # A counter that became smaller began at 0.
        ({"requests_total{model=m,code=OK}": (100, 4)}, "requests_per_s", 2.0),
        # Answers are no errors, nor are codes that did not occur. A series that is new began at 0.
        (
            {
                "requests_total{model=m,code=OK}": (5, 6),
                "requests_total{model=m,code=CANCELLED}": (5, 5),
                "requests_total{model=m,code=UNAVAILABLE}": (5, 8),
                "requests_total{model=m,code=INTERNAL}": (0, 1),
            },
            "errors_per_s",
            {"UNAVAILABLE": 1.5, "INTERNAL": 0.5},
        ),
        (
            {
                "stage_duration_seconds_sum{model=m,stage=queue}": (1, 4),
                "stage_duration_seconds_sum{model=m,stage=compute}": (1, 2),
            },
            "stage_shares",
            {"queue": 0.75, "compute": 0.25},
        ),
        # What waits is no rate.
        ({"queue_tokens{model=m}": (90, 30)}, "queue_tokens", 30),
        ({"estimated_wait_seconds{model=m}": (0, 0.25)}, "estimated_wait_s", 0.25),
        ({"batch_tokens_sum{model=m}": (100, 400)}, "tokens_per_s", 150.0),
        ({"batch_tokens_sum{model=m}": (100, 400), "batch_tokens_count{model=m}": (1, 4)}, "batch_tokens", 100.0),
        ({"batch_sequences_sum{model=m}": (8, 9), "batch_tokens_count{model=m}": (1, 3)}, "batch_sequences", 0.5),
        ({"batch_padding_ratio_sum{model=m}": (0.5, 1.0), "batch_tokens_count{model=m}": (1, 3)}, "padding", 0.25),
        # The shares of the devices are added up.
        (
            {
                f"device_busy_seconds_total{{model=m,device={device}}}": (7 * device, 8.5 * device)
                for device in (0, 1, 2)
            },
            "device_share",
            2.25,
        ),
        # A version that is loaded again.
        (
            {"version_state{model=m,state=loading}": (0, 1), "version_state{model=m,state=failed}": (1, 0)},
            "states",
            ["ready", "loading"],
        ),
    ],
)
def test_the_activity_of_a_version(series: dict[str, tuple[float, float]], field: str, expected: Any) -> None:
    before = {name: earlier for name, (earlier, _) in series.items() if earlier}
    now = {name: later for name, (_, later) in series.items()}
    assert getattr(of_m(before, now), field) == expected


def test_errors_of_requests_that_reached_no_model_are_of_the_server() -> None:
    def without_model(code: str, count: int) -> dict[str, float]:
        return {f"requests_total{{model=,version=,method=Encode,code={code}}}": count}

    before = READY | without_model("CANCELLED", 7) | without_model("OK", 1)
    now = READY | without_model("CANCELLED", 7) | without_model("OK", 5) | without_model("DEADLINE_EXCEEDED", 5)
    server = between(before, now | {"requests_total{model=m,code=INTERNAL}": 2})
    assert server.errors_without_model_per_s == {"DEADLINE_EXCEEDED": 2.5}
    assert [version.errors_per_s for version in server.versions] == [{"INTERNAL": 1.0}]


def test_nothing_has_no_mean_and_no_quantile() -> None:
    same: dict[str, float] = {"batch_tokens_sum{model=m}": 4, "batch_tokens_count{model=m}": 1}
    same |= {"stage_duration_seconds_sum{model=m,stage=queue}": 1}
    same |= {f"request_duration_seconds_bucket{{model=m,method=Encode,le={le}}}": 3 for le in ("1.0", "+Inf")}
    idle = of_m(same, same)
    of_nothing = (idle.p50_s, idle.p99_s, idle.batch_tokens, idle.batch_sequences, idle.padding)
    assert all(map(math.isnan, (*of_nothing, idle.stage_shares["queue"])))
    assert (idle.requests_per_s, idle.tokens_per_s, idle.device_share, idle.errors_per_s) == (0, 0, 0, {})


def test_quantiles_are_of_the_requests_between_the_readings_and_not_of_attend() -> None:
    def durations(method: str, *counts: int) -> dict[str, float]:
        labels = f"model=m,method={method}"
        bounds = ("0.1", "0.2", "+Inf")
        return {
            f"request_duration_seconds_bucket{{{labels},le={bound}}}": count
            for bound, count in zip(bounds, counts, strict=True)
        }

    before = durations("Encode", 1000, 1000, 1000) | durations("Attend", 0, 0, 0)
    now = durations("Encode", 1000, 1050, 1050) | durations("Attend", 0, 0, 900)
    now |= durations("POST /v1/embeddings", 50, 50, 50)
    assert of_m(before, now).p50_s == pytest.approx(0.1)
    assert of_m(before, now).p99_s == pytest.approx(0.198)


@pytest.mark.parametrize(
    ("fraction", "counts", "expected"),
    [
        (0.5, {}, math.nan),
        (0.5, {INF: 7}, math.nan),
        (0.5, {1: 0, 2: 0, INF: 0}, math.nan),
        (0.5, {1: 10, 2: 10, INF: 10}, 0.5),  # The first bucket begins at 0.
        (0.9, {1: 0, 2: 10, INF: 10}, 1.9),
        (0.5, {1: 5, 2: 10, INF: 10}, 1.0),  # On the bound of a bucket.
        (0.75, {1: 5, 2: 5, 4: 10, INF: 10}, 3.0),  # An empty bucket.
        (0.99, {1: 5, 2: 6, INF: 10}, 2.0),  # In the last bucket: its lower bound.
        (0.5, {1: 8, 2: 3, INF: 8}, 0.5),  # The counter of 2 started again.
    ],
)
def test_a_quantile_is_that_of_prometheus(fraction: float, counts: dict[float, float], expected: float) -> None:
    assert quantile(fraction, counts) == pytest.approx(expected, nan_ok=True)


def test_all_counters_of_a_server_that_was_restarted_began_at_0() -> None:
    before = READY | {"process_start_time_seconds{process=engine}": 100.0, "requests_total{model=m,code=OK}": 10}
    now = READY | {"process_start_time_seconds{process=engine}": 200.0, "requests_total{model=m,code=OK}": 50}
    now |= {"process_start_time_seconds{process=front end 1}": 300.0}
    server = between(before, now)
    assert server.versions[0].requests_per_s == 25.0
    assert server.started_unix_s == 200.0


def test_a_restarted_front_end_is_no_restart_of_the_server() -> None:
    before = {"process_start_time_seconds{process=engine}": 1.0, "process_start_time_seconds{process=front end 1}": 2.0}
    now = {"process_start_time_seconds{process=engine}": 1.0, "process_start_time_seconds{process=front end 1}": 9.0}
    count = {"requests_total{model=m,code=OK}": 10}
    assert of_m(before | count, now | count).requests_per_s == 0.0


def test_versions_appear_and_vanish_and_the_busiest_is_first() -> None:
    def of(version: int, busy_s: float, state: str = "ready") -> dict[str, float]:
        labels = f"model=m,version={version}"
        return {
            f"version_state{{{labels},state={state}}}": 1,
            f"device_busy_seconds_total{{{labels},device=0}}": busy_s,
        }

    before = of(1, 50.0) | of(2, 50.0)
    server = between(before, of(2, 50.5) | of(3, 1.0) | {"version_state{model=m,version=4,state=loading}": 1})
    assert [(each.version, each.device_share) for each in server.versions] == [("3", 0.5), ("2", 0.25), ("4", 0.0)]
    assert server.versions[-1].states == ["loading"]
    assert server.device_shares == {"0": {("m", "3"): 0.5, ("m", "2"): 0.25}}
    assert list(server.device_shares["0"]) == [("m", "3"), ("m", "2")]


def test_the_facts_about_the_whole_server() -> None:
    now = {"front_ends": 2, "inflight_requests": 7, "gpu_memory_used_bytes{gpu=1}": 3e9, "refused_total{reason=B}": 4}
    now |= {"gpu_memory_total_bytes{gpu=1}": 8e9, "device_busy_seconds_total{model=m,device=0}": 5}
    server = between({"refused_total{reason=A}": 3, "device_busy_seconds_total{model=m,device=0}": 5}, now)
    assert (server.build, server.front_ends, server.in_progress, server.seconds) == ("0.1.0", 2, 7, SECONDS)
    assert server.refused_per_s == {"B": 2.0}
    assert (server.gpu_memory_used_bytes, server.gpu_memory_total_bytes) == ({"1": 3e9}, {"1": 8e9})
    assert server.device_shares == {"0": {}}  # Idle.
    assert server.versions == []
    assert list(
        between({}, {f"device_busy_seconds_total{{model=m,device={each}}}": 1 for each in (10, 2)}).device_shares
    ) == ["2", "10"]
    assert math.isnan(server.started_unix_s)


def test_a_series_whose_name_begins_like_another_is_another() -> None:
    assert between({}, {"front_ends": 2, "front_ends_of_tomorrow": 5}).front_ends == 2


def test_labels_are_read_without_the_commands_of_terminals() -> None:
    reading = read_page(f'{BUILD}\nheadwaiter_version_state{{model="a\x1b[2J\\n",version="1",state="ready"}} 1\n')
    (version,) = activity(reading, reading, SECONDS).versions
    assert version.model == "a?[2J?"


@pytest.mark.parametrize("text", ["", "<html>not found</html>", "up 1\n", f"{BUILD}\nheadwaiter_front_ends{{ 2\n"])
def test_another_page_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        read_page(text)
