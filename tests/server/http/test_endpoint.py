"""HTTP requests follow the rules of the server: token, limits, deadlines, errors, metrics."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request

from headwaiter_proto.rules.errors import (
    DeadlineExceeded,
    DeviceFailed,
    HeadwaiterError,
    InferenceFailed,
    InvalidInput,
    ModelNotFound,
    Overloaded,
    SequenceTooLong,
    Unavailable,
    Unimplemented,
)
from headwaiter_server.http.api.errors import OPENAI_ERRORS
from headwaiter_server.http.application import http_application
from headwaiter_server.http.bodies import Bodies
from headwaiter_server.http.endpoint import HttpRules, Method
from headwaiter_server.requests.call import Call
from headwaiter_server.settings.flags import Settings
from tests.support.server.asgi_caller import Reply, as_json, send_request
from tests.support.server.service_under_test import Service
from tests.support.server.stand_ins import credentials_of, sample

# Any step of these tests takes fewer iterations of the event loop.
LOOP_ITERATIONS = 50
URL = "/v1/embeddings"
TEXT = as_json({"input": "a bb"})


def api(service: Service, token: str | None = None, **settings: float) -> Starlette:
    changed = Settings(bundle=Path("bundle"), http_api="on", **settings)  # type: ignore[arg-type]
    return http_application(changed, service.path, credentials_of(token), asyncio.get_running_loop())


def endpoint(
    service: Service,
    answer: Callable[[None, Call], Awaitable[bytes]],
    *,
    bodies: Bodies | None = None,
    timeout_s: float = 60.0,
) -> Starlette:
    """Return an application with one path, whose answers a test chooses."""
    rules = HttpRules(
        service.path, asyncio.get_running_loop(), bodies or Bodies(100, 200), 1000, lambda: None, timeout_s
    )
    method = Method("POST /test", _read_nothing, answer, lambda _, body: body, _write_error)
    return Starlette(routes=[method.route(rules)])


def _read_nothing(request: Request, body: bytes) -> None:
    pass


def _write_error(error: HeadwaiterError, status: int, question: None) -> bytes:
    return OPENAI_ERRORS.write(error, status, (), {})


async def answer_yes(_: None, call: Call) -> bytes:
    return b"yes"


def counted(service: Service, code: str, method: str = "POST /test") -> float | None:
    return sample(service.recorder, "requests_total", model="", version="", method=method, code=code)


async def test_without_the_api_only_metrics_and_health_answer(service: Service) -> None:
    application = http_application(
        Settings(bundle=Path("bundle")), service.path, credentials_of(None), asyncio.get_running_loop()
    )
    for path in (URL, "/v1/models", "/embed", "/../etc/passwd"):
        assert (await send_request(application, "POST", path, TEXT)).status == 404
    reply = await send_request(application, "POST", "/", TEXT)
    assert (reply.status, reply.headers["allow"]) == (405, "GET")
    assert (await send_request(application, "GET", "/health/live")).status == 200
    assert b"headwaiter_inflight_requests" in (await send_request(application, "GET", "/metrics")).body


async def test_a_slash_at_the_end_is_refused(service: Service) -> None:
    reply = await send_request(api(service), "POST", f"{URL}/", TEXT)
    assert (reply.status, f"{URL}/" in reply.json["error"]["message"]) == (404, True)


@pytest.mark.parametrize("given", [None, "Bearer wrong", "s3cret", "Bearer s3cret "])
async def test_a_request_without_the_token_is_refused(given: str | None, service: Service) -> None:
    application = api(service, "s3cret")
    headers = {} if given is None else {"Authorization": given}
    reply = await send_request(application, "POST", URL, TEXT, headers=headers)
    assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")
    assert reply.json["error"]["code"] == "invalid_api_key"
    assert sample(service.recorder, "refused_total", reason="UNAUTHENTICATED") == 1
    assert (await send_request(application, "GET", "/health/live")).status == 200
    for good in ({"Authorization": "Bearer s3cret"}, {"Authorization": "bearer s3cret"}, {"api-key": "s3cret"}):
        assert (await send_request(application, "POST", URL, TEXT, headers=good)).status == 200


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidInput("x"), 400),
        (SequenceTooLong("x"), 400),
        (ModelNotFound("x"), 404),
        (Overloaded("x", retry_after_s=0.25), 429),
        (Unavailable("x"), 503),
        (DeviceFailed("x"), 503),
        (DeadlineExceeded("x"), 504),
        (InferenceFailed("x"), 500),
        (Unimplemented("x"), 501),
        (ValueError("secret"), 500),
    ],
)
async def test_each_error_has_its_status(error: Exception, status: int, service: Service) -> None:
    async def fail(_: None, call: Call) -> bytes:
        raise error

    reply = await send_request(endpoint(service, fail), "POST", "/test", b"{}")
    assert reply.status == status
    assert reply.headers["x-request-id"]
    assert ("secret" in reply.body.decode()) is False
    if isinstance(error, HeadwaiterError):
        assert reply.json["error"]["message"] == "x"
    delays = {name: reply.headers.get(name) for name in ("retry-after", "retry-after-ms")}
    if status == 429:
        assert delays == {"retry-after": "1", "retry-after-ms": "250"}
    assert (delays["retry-after"] is not None) is (status in (429, 503))
    if isinstance(error, HeadwaiterError):
        assert reply.headers.get("x-should-retry") == (None if status in (429, 503) else "false")


@pytest.mark.parametrize(
    ("truncated", "header"),
    [
        ([], None),
        ([3], "3"),
        ([0, 3], "0,3"),
        (range(100), ",".join(map(str, range(100)))),
        (range(4096), ",".join([*map(str, range(100)), "..."])),
    ],
)
async def test_a_reply_says_which_texts_were_truncated(truncated: Any, header: str | None, service: Service) -> None:
    async def answer(_: None, call: Call) -> bytes:
        call.truncated = truncated
        return b"{}"

    reply = await send_request(endpoint(service, answer), "POST", "/test", b"{}")
    assert reply.headers.get("headwaiter-truncated") == header


@pytest.mark.parametrize(("parts", "complete"), [((6, 5), True), ((100,), True), ((6, 80), False)])
async def test_a_large_body_is_refused(
    parts: tuple[int, ...], complete: bool, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwaiter_server.http.bodies._MAX_DISCARDED_BYTES", 70)
    application = endpoint(service, answer_yes, bodies=Bodies(10, 100))
    assert (await send_request(application, "POST", "/test", b"1" * 6, b"2" * 4)).status == 200
    reply = await send_request(application, "POST", "/test", *(b"1" * size for size in parts), complete=complete)
    assert (reply.status, reply.headers["connection"]) == (413, "close")
    assert reply.json["error"]["limit"] == 10


async def test_incomplete_bodies_of_a_host_leave_room_for_those_of_others(service: Service) -> None:
    gone = asyncio.Event()
    application = endpoint(service, answer_yes, bodies=Bodies(10, 40))

    def send(body: bytes, **options: Any) -> asyncio.Task[Reply]:
        return asyncio.create_task(send_request(application, "POST", "/test", body, **options))

    slow = [send(b"1" * 10, complete=False, disconnect=gone) for _ in range(2)]
    await asyncio.sleep(0.01)
    assert (await send(b"1")).status == 429
    assert (await send(b"1" * 10, host="192.0.2.2")).status == 200
    gone.set()
    await asyncio.gather(*slow)
    assert (await send(b"1" * 10)).status == 200


@pytest.mark.parametrize("during_the_body", [False, True])
async def test_a_caller_that_disconnects_cancels_its_request(during_the_body: bool, service: Service) -> None:
    released, started, gone = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def wait(_: None, call: Call) -> bytes:
        call.held.callback(released.set)
        started.set()
        await asyncio.Event().wait()
        return b""

    request = send_request(
        endpoint(service, wait), "POST", "/test", b"{", complete=not during_the_body, disconnect=gone
    )
    sending = asyncio.create_task(request)
    if not during_the_body:
        await started.wait()
    gone.set()
    assert await sending == Reply()
    if not during_the_body:
        await released.wait()
        for _ in range(LOOP_ITERATIONS):
            await asyncio.sleep(0)
        assert counted(service, "CANCELLED") == 1
    assert sample(service.recorder, "inflight_requests") == 0


async def test_an_answer_that_takes_too_long_is_cancelled(service: Service) -> None:
    cancelled = asyncio.Event()

    async def wait(_: None, call: Call) -> bytes:
        try:
            return await asyncio.Event().wait() and b""
        finally:
            cancelled.set()

    reply = await send_request(endpoint(service, wait, timeout_s=0.05), "POST", "/test", b"{}")
    assert reply.status == 504
    assert cancelled.is_set()
    assert counted(service, "DEADLINE_EXCEEDED") == 1


async def test_the_limit_of_calls_holds_for_http(service: Service) -> None:
    limit = service.path.settings.max_calls

    async def hold(question: None, call: Call) -> bytes:
        for _ in range(limit // 2):
            service.path.call_limit.hold(call.connection, call.held)
        return b""

    reply = await send_request(endpoint(service, hold), "POST", "/test", b"{}")
    assert (reply.status, reply.json["error"]["limit"]) == (429, limit)
    # What the call held is given back.
    assert (await send_request(endpoint(service, answer_yes), "POST", "/test", b"{}")).status == 200
