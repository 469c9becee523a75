"""The log lines of a request name the request, its model and its caller, as text and as fields."""

import asyncio
import logging
from typing import Any

import pytest
from grpc import StatusCode

from headwaiter_proto.rules.errors import InvalidInput
from headwaiter_server.metrics.recorder import Recorder
from headwaiter_server.requests.call import Call, OutcomeRecorder, clock
from headwaiter_server.settings.tenants import Tenant

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def call(connection: str = "ipv4:10.0.0.7:50123", **fields: Any) -> Call:
    made = Call("Encode", clock(), float("inf"), connection, **fields)
    made.request_id = "r-7"
    return made


def fail(failing: Call) -> None:
    with OutcomeRecorder(failing, Recorder()):
        raise InvalidInput("no")


@pytest.mark.parametrize(
    ("failing", "line", "fields"),
    [
        (
            call(tenant=Tenant("search"), model=("tiny", "3")),
            "Encode r-7, model tiny version 3, from 10.0.0.7:50123 with the token of search: InvalidInput: no",
            {"model", "version", "caller", "tenant"},
        ),
        (call(), "Encode r-7, from 10.0.0.7:50123: InvalidInput: no", {"caller"}),
        (call("", tenant=Tenant("billing")), "Encode r-7, with the token of billing: InvalidInput: no", {"tenant"}),
        (call(""), "Encode r-7: InvalidInput: no", set()),
    ],
)
def test_a_failure_names_what_is_known_of_its_request(
    failing: Call, line: str, fields: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with pytest.raises(InvalidInput):
        fail(failing)
    (record,) = caplog.records
    assert record.getMessage() == line
    assert set(vars(record)["request"]) == {"request_id", "method", "code", "duration_s"} | fields


# With 60 s left of 10,000 s, gRPC may have rounded the deadline; with 60 s left of 70 s, the caller has cancelled.
@pytest.mark.parametrize(("allowed_s", "code"), [(10_000.0, "DEADLINE_EXCEEDED"), (70.0, "CANCELLED")])
async def test_a_cancelled_request_has_missed_its_deadline_if_little_of_its_time_is_left(
    allowed_s: float, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    cancelled = call()
    cancelled.deadline_s = clock() + 60
    cancelled.arrived_s = cancelled.deadline_s - allowed_s
    with pytest.raises(asyncio.CancelledError), OutcomeRecorder(cancelled, Recorder()):
        raise asyncio.CancelledError
    (record,) = caplog.records
    assert vars(record)["request"]["code"] == code


@pytest.mark.parametrize(
    ("connection", "caller"),
    [
        ("ipv4:10.0.0.7:50123", "10.0.0.7:50123"),
        ("ipv6:%5B::1%5D:50123", "[::1]:50123"),
        ("unix:/run/headwaiter.sock", "unix:/run/headwaiter.sock"),
        ("10.0.0.7", "10.0.0.7"),
        ("::1", "::1"),
    ],
)
def test_the_caller_is_an_address_as_people_write_it(connection: str, caller: str) -> None:
    assert call(connection).log_fields(StatusCode.OK)["caller"] == caller


@pytest.mark.parametrize(
    "traceparent",
    [
        "",
        TRACE,
        f"00-{TRACE.upper()}-00f067aa0ba902b7-01",
        f"00-{'0' * 32}-00f067aa0ba902b7-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-00f067aa0ba902b7-01",
        f"00-{TRACE}-00f067aa0ba902b7-01\n",
        f"00-{TRACE}-00f067aa0ba902b7",
        f"00-{TRACE}-00f067aa0ba902b7-01-more",  # Only later versions append more.
    ],
)
def test_a_traceparent_that_is_not_valid_gives_no_trace_id(traceparent: str) -> None:
    assert "trace_id" not in call(traceparent=traceparent).log_fields(StatusCode.OK)


def test_a_request_that_succeeds_is_logged_with_its_stages_at_the_level_debug_only(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = call(model=("tiny", "3"))
    answered.stages = {"compute": 0.0125, "queue": 0.25}
    caplog.set_level(logging.DEBUG)
    with OutcomeRecorder(answered, Recorder()):
        pass
    (record,) = caplog.records
    assert record.levelno == logging.DEBUG
    assert record.getMessage().startswith("Encode r-7, model tiny version 3, from 10.0.0.7:50123: answered in ")
    assert record.getMessage().endswith("compute 12.50 ms, queue 250.00 ms")
    assert vars(record)["request"]["stages"] == {"compute": 0.0125, "queue": 0.25}
    assert vars(record)["request"]["code"] == "OK"
    caplog.clear()
    caplog.set_level(logging.INFO)
    # The line is not even made.
    monkeypatch.setattr(Call, "describe", None)
    monkeypatch.setattr(Call, "log_fields", None)
    with OutcomeRecorder(answered, Recorder()):
        pass
    assert caplog.records == []
