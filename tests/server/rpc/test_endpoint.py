"""Every call ends in a reply or a status, writes at most one log line, and is counted once in the metrics."""

import asyncio
import logging
from contextlib import ExitStack
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2

from headwaiter_proto.rules.errors import (
    DeadlineExceeded,
    HeadwaiterError,
    InferenceFailed,
    InvalidInput,
    Overloaded,
    Unavailable,
)
from headwaiter_server.metrics.recorder import Recorder
from headwaiter_server.requests.call import Call, clock
from headwaiter_server.requests.shares import CallLimit
from headwaiter_server.rpc.endpoint import Handle, UnaryCalls, stream_handler
from headwaiter_server.rpc.incoming import IncomingMessages
from tests.support.server.stand_ins import Context, sample

# How the log names the request of a call, see `_raising` and `Context.peer`.
REQUEST = "Encode r-7, from 127.0.0.1:5"


async def _call(handle: Handle, recorder: Recorder, context: Context) -> bytes:
    reply: bytes = await _answer(handle, recorder, CallLimit(1))(None, context)
    return reply


def _answer(handle: Handle, recorder: Recorder, limit: CallLimit) -> Any:
    return UnaryCalls(recorder, limit, IncomingMessages(1 << 20)).handler("Encode", handle).stream_unary


def _raising(error: BaseException, *, queued: bool = False) -> Handle:
    async def handle(raw: bytes, call: Call) -> bytes:
        call.request_id = "r-7"
        if queued:
            call.note_queued()
        raise error

    return handle


def _counted(recorder: Recorder, code: str) -> bool:
    assert sample(recorder, "inflight_requests") == 0
    timed = sample(recorder, "request_duration_seconds_count", model="", version="", method="Encode")
    assert timed == (1 if code == "OK" else None)
    return sample(recorder, "requests_total", model="", version="", method="Encode", code=code) == 1


async def test_a_method_gets_the_raw_message_and_the_deadline_and_its_reply_is_returned() -> None:
    recorder = Recorder()
    seen: list[Call] = []
    in_flight: list[float | None] = []

    async def handle(raw: bytes, call: Call) -> bytes:
        seen.append(call)
        in_flight.append(sample(recorder, "inflight_requests"))
        return raw + b"!"

    before_s = clock()
    assert await _call(handle, recorder, Context(remaining_s=5.0)) == b"raw!"
    assert _counted(recorder, "OK")
    assert await _call(handle, recorder, Context(remaining_s=None)) == b"raw!"

    bounded, unbounded = seen
    assert before_s <= bounded.arrived_s <= clock()
    assert bounded.deadline_s == bounded.arrived_s + 5.0
    assert unbounded.deadline_s == float("inf")
    assert bounded.request_id != unbounded.request_id
    assert in_flight == [1, 1]


@pytest.mark.parametrize(
    ("error", "queued", "code", "reason", "level"),
    [
        (InvalidInput("no", field="model"), False, "INVALID_ARGUMENT", "INVALID_INPUT", logging.INFO),
        (Overloaded("full", retry_after_s=1), False, "RESOURCE_EXHAUSTED", "OVERLOADED", logging.WARNING),
        (Unavailable("starting"), False, "UNAVAILABLE", "UNAVAILABLE", logging.WARNING),
        (Unavailable("the device died"), True, "UNAVAILABLE", None, logging.WARNING),
        (InvalidInput("the answer exceeds float16"), True, "INVALID_ARGUMENT", None, logging.INFO),
        (InferenceFailed("nan"), True, "INTERNAL", None, logging.WARNING),
        (DeadlineExceeded("late"), False, "DEADLINE_EXCEEDED", None, logging.WARNING),
    ],
)
async def test_an_error_becomes_a_status_without_its_cause_and_a_refusal_if_its_request_was_not_queued(
    error: HeadwaiterError,
    queued: bool,
    code: str,
    reason: str | None,
    level: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    recorder, context = Recorder(), Context()
    error.__cause__ = RuntimeError("Gemm:\n  no memory")
    await _call(_raising(error, queued=queued), recorder, context)
    assert (context.code, context.message) == (grpc.StatusCode[code], str(error))
    assert "memory" not in str(context.status)
    (request_info,) = [
        detail for detail in context.status.details if detail.Is(error_details_pb2.RequestInfo.DESCRIPTOR)
    ]
    assert error_details_pb2.RequestInfo.FromString(request_info.value).request_id == "r-7"
    line = f"{REQUEST}: {type(error).__name__}: {error} (Gemm: no memory)"
    assert caplog.record_tuples == [("headwaiter_server.requests.call", level, line)]
    assert _counted(recorder, code)
    refused = [
        metric.labels["reason"]
        for family in recorder.registry.collect()
        for metric in family.samples
        if metric.name == "headwaiter_refused_total" and metric.value
    ]
    assert refused == ([reason] if reason else [])


async def test_an_unexpected_exception_is_logged_with_its_traceback_and_not_sent_to_the_caller(
    caplog: pytest.LogCaptureFixture,
) -> None:
    recorder, context = Recorder(), Context()
    await _call(_raising(ZeroDivisionError("secret")), recorder, context)
    assert context.code == grpc.StatusCode.INTERNAL
    assert "secret" not in context.message + str(context.status)
    (line,) = caplog.messages
    assert line.startswith(f"{REQUEST}: ")
    assert "ZeroDivisionError: secret" in caplog.text
    assert _counted(recorder, "INTERNAL")


@pytest.mark.parametrize(
    ("remaining_s", "code", "word"),
    [(None, "CANCELLED", "caller"), (60.0, "CANCELLED", "caller"), (-1.0, "DEADLINE_EXCEEDED", "deadline")],
)
async def test_a_call_that_grpc_cancels_counts_as_cancelled_or_as_past_its_deadline(
    remaining_s: float | None, code: str, word: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    recorder = Recorder()
    with pytest.raises(asyncio.CancelledError):
        await _call(_raising(asyncio.CancelledError()), recorder, Context(remaining_s))
    (line,) = caplog.messages
    assert line.startswith(f"{REQUEST}: ")
    assert word in line
    assert _counted(recorder, code)


async def test_a_call_over_the_limit_is_refused_and_a_later_one_is_answered() -> None:
    recorder, limit, released = Recorder(), CallLimit(1), asyncio.Event()

    async def handle(raw: bytes, call: Call) -> bytes:
        await released.wait()
        return raw

    answer = _answer(handle, recorder, limit)
    first_context, refused = Context(raw=b"first"), Context()
    first = asyncio.create_task(answer(None, first_context))
    await asyncio.sleep(0)
    await answer(None, refused)
    assert refused.code == grpc.StatusCode.RESOURCE_EXHAUSTED
    (retry,) = [detail for detail in refused.status.details if detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR)]
    assert error_details_pb2.RetryInfo.FromString(retry.value).retry_delay.ToMilliseconds() == 1000
    assert sample(recorder, "refused_total", reason="OVERLOADED") == 1
    released.set()
    assert await first == b"first"
    second_context = Context()
    await answer(None, second_context)
    assert second_context.code == grpc.StatusCode.RESOURCE_EXHAUSTED  # The caller has not received the reply.
    first_context.end()
    assert await answer(None, Context(raw=b"third")) == b"third"


async def test_a_stream_that_fails_ends_in_a_status_and_counts_once(caplog: pytest.LogCaptureFixture) -> None:
    async def handle(context: object, call: Call) -> None:
        raise ZeroDivisionError("secret")

    recorder, limit, context = Recorder(), CallLimit(1), Context()
    answer: Any = stream_handler("EncodeStream", handle, recorder, limit).stream_stream
    await answer(None, context)
    assert context.code == grpc.StatusCode.INTERNAL
    assert "secret" not in context.message
    assert "ZeroDivisionError: secret" in caplog.text
    assert sample(recorder, "requests_total", model="", version="", method="EncodeStream", code="INTERNAL") == 1
    context.end()
    limit.hold("", ExitStack())  # The failed call no longer counts towards the limit.


@pytest.mark.parametrize(
    ("value", "device_failures"),
    [(None, 0), ("0", 0), ("1", 1), ("12", 12), ("100", 0), ("-1", 0), ("1.5", 0), ("many", 0), (b"1", 0), ("٣", 0)],
)
async def test_the_number_of_device_failures_comes_from_the_metadata(
    value: str | bytes | None, device_failures: int
) -> None:
    context = Context()
    if value is not None:
        context.metadata = (("x-team", "search"), ("headwaiter-device-failures", value))
    calls = []

    async def handle(raw: bytes, call: Call) -> bytes:
        calls.append(call.device_failures)
        return raw

    await _answer(handle, Recorder(), CallLimit(1))(None, context)
    assert calls == [device_failures]
