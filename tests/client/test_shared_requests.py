"""Short calls of one client that are made together share a request, and each ends as it would alone."""

import asyncio
import gc
import threading
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import numpy as np
import pytest
from opentelemetry.sdk.trace import TracerProvider

from headwaiter_client import AsyncClient, Client, FakeEncoder, Overloaded
from headwaiter_client.calls.encode import OneTextCall
from headwaiter_client.calls.input_kinds import TextInput
from headwaiter_client.calls.list_call import CallSettings
from headwaiter_client.calls.options import RequestOptions
from headwaiter_client.calls.shared_requests import REQUESTS_PER_SERVER, Caller, SharedRequest, SharedRequests
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import (
    DeadlineExceeded,
    DeviceFailed,
    HeadwaiterError,
    InferenceFailed,
    Unimplemented,
)
from tests.support.client.both_clients import InThreads, open_client, wait_until

_TEXTS = [f"text {number}" for number in range(20)]
# The text of the requests that the calls of a test wait for.
_HOLDER = "holder"
# Makes calls of one client that wait together, so that they share a request.
Together = Callable[..., list[Any]]


class _HeldEncoder:
    """A transport that holds the requests of `_HOLDER` until it is opened, and gives all others to a fake server."""

    def __init__(self, fake: FakeEncoder) -> None:
        self.opened = threading.Event()
        self.held = 0
        self._fake = fake
        self.close = fake.close

    def unary(self, method: str, request: bytes, *others: Any) -> bytes:
        if _HOLDER.encode() in request:
            self.held += 1
            assert self.opened.wait(30)
        return self._fake.unary(method, request, *others)


@pytest.fixture
def together(client_class: type[Client] | type[AsyncClient]) -> Together:
    """Return the result or the error of each call; all calls wait together until four requests before them end.

    With `until_done`, the four requests end after the calls.
    """
    return lambda *arguments, **options: asyncio.run(_together(client_class, *arguments, **options))


async def _together(
    client_class: Any, fake: FakeEncoder, calls: Sequence[Callable[[Any], Any]], *, until_done: bool = False
) -> list[Any]:
    held = _HeldEncoder(fake)
    async with open_client(client_class, InThreads(held)) as client:

        def are_settled() -> bool:
            waiting: int = 0 if until_done else sum(map(len, client._sharing._requests._waiting.values()))
            return waiting + sum(bool(task.done()) for task in tasks) == len(calls)

        holders = []
        for _ in range(REQUESTS_PER_SERVER):
            holders.append(asyncio.ensure_future(client.encode(_HOLDER)))
            await wait_until(lambda: held.held == len(holders))
        tasks = [asyncio.ensure_future(call(client)) for call in calls]
        await wait_until(are_settled)
        held.opened.set()
        await asyncio.gather(*holders)
        return await asyncio.gather(*tasks, return_exceptions=True)


def _requests(fake: FakeEncoder) -> list[Any]:
    """Return the requests, without those that the others waited for."""
    return [request for request in fake.requests if _HOLDER not in request.texts.values]


def _encode(text: str | list[str], **options: Any) -> Callable[[Any], Any]:
    return lambda client: client.encode(text, **options)


def test_calls_share_one_request_and_get_the_vectors_of_single_calls(together: Together) -> None:
    fake = FakeEncoder()
    outcomes = together(fake, [_encode(text) for text in _TEXTS])
    (request,) = _requests(fake)
    assert sorted(request.texts.values) == sorted(_TEXTS)
    assert request.calls == len(_TEXTS)
    with Client(transport=FakeEncoder()) as alone:
        for text, outcome in zip(_TEXTS, outcomes, strict=True):
            np.testing.assert_array_equal(outcome.pooled, alone.encode(text).pooled)
            assert outcome.index == 0
            assert outcome.pooled.base is None  # It keeps no other vector in memory.


def test_lists_keep_their_rows_offsets_and_truncations(together: Together) -> None:
    options: dict[str, Any] = {"hidden": True, "offsets": True, "truncation": "right", "dtype": "int8"}
    lists = [["a", "b c"], ["d " * 20], ["e f g", "h " * 30, "i"]]
    outcomes = together(FakeEncoder(max_tokens=8), [_encode(texts, **options) for texts in lists])
    with Client(transport=FakeEncoder(max_tokens=8)) as alone:
        for texts, outcome in zip(lists, outcomes, strict=True):
            expected = alone.encode(texts, **options)
            np.testing.assert_array_equal(outcome.pooled, expected.pooled)
            np.testing.assert_array_equal(outcome.lengths, expected.lengths)
            assert outcome.truncated == expected.truncated
            for rows, expected_rows in zip(
                outcome.hidden + outcome.offsets, expected.hidden + expected.offsets, strict=True
            ):
                np.testing.assert_array_equal(rows, expected_rows)


@pytest.mark.parametrize("partial", [False, True])
def test_a_bad_sequence_fails_its_own_call_with_the_error_that_it_has_alone(together: Together, partial: bool) -> None:
    long = "much too long " * 5
    fake = FakeEncoder(max_tokens=8)
    good, bad, bad_text, good_list = together(
        fake, [_encode(each, partial=partial) for each in ("good", ["fine", long], long, ["good", "too"])]
    )
    assert len(_requests(fake)) == 1
    with Client(transport=FakeEncoder(max_tokens=8)) as alone:
        expected = alone.encode(["fine", long], partial=True).failures[1]
        np.testing.assert_array_equal(good.pooled, alone.encode("good").pooled)
        np.testing.assert_array_equal(good_list.pooled, alone.encode(["good", "too"]).pooled)
    for error, index in ((bad.failures[1] if partial else bad, 1), (bad_text.failure if partial else bad_text, 0)):
        assert (type(error), error.problem, error.sequence) == (type(expected), expected.problem, index)
        assert (error.field, error.limit, error.actual) == (expected.field, expected.limit, expected.actual)


class _Poisoned(FakeEncoder):
    """A server that refuses the whole request for a text."""

    def __init__(self, *, names_text: bool) -> None:
        super().__init__()
        self._names_text = names_text

    def unary(self, method: str, request: bytes, *others: Any) -> bytes:
        if b"poison" in request and b"GetModel" not in method.encode():
            self.requests.append(message := pb.EncodeRequest.FromString(request))
            place = [*message.texts.values].index("poison") if self._names_text else None
            raise InferenceFailed("made devices fail twice", sequence=place)
        return super().unary(method, request, *others)


@pytest.mark.parametrize("names_text", [True, False])
def test_a_text_that_fails_the_request_ends_no_other_call(together: Together, names_text: bool) -> None:
    fake = _Poisoned(names_text=names_text)
    outcomes = together(fake, [_encode("a"), _encode("poison"), _encode("b")])
    assert isinstance(outcomes[1], InferenceFailed)
    assert outcomes[1].sequence == (0 if names_text else None)
    assert [outcome.pooled.shape for outcome in (outcomes[0], outcomes[2])] == [(8,), (8,)]
    # A text that has killed two devices is not sent again.
    assert sorted(request.texts.values[0] for request in _requests(fake) if len(request.texts.values) == 1) == [
        *"ab",
        *([] if names_text else ["poison"]),
    ]


@pytest.mark.parametrize("error_class", [Overloaded, DeviceFailed])
def test_a_refusal_of_the_request_ends_each_call_with_an_error_of_its_own(
    together: Together, error_class: type[HeadwaiterError]
) -> None:
    class Refusing(FakeEncoder):
        def unary(self, method: str, request: bytes, *others: Any) -> bytes:
            if b"refused" in request:
                raise error_class("refused", retry_after_s=1.5)
            return super().unary(method, request, *others)

    outcomes = together(Refusing(), [_encode("refused 1"), _encode("refused 2")])
    assert [(type(each), str(each), each.retry_after_s) for each in outcomes] == [(error_class, "refused", 1.5)] * 2
    assert outcomes[0] is not outcomes[1]


def test_calls_of_a_model_without_a_description_have_requests_of_their_own(together: Together) -> None:
    class Silent(FakeEncoder):
        def unary(self, method: str, *others: Any) -> bytes:
            if method.endswith("GetModel"):
                raise Unimplemented("a proxy forwards only Encode")
            return super().unary(method, *others)

    fake = Silent()
    outcomes = together(fake, [_encode("a"), _encode("b")])
    assert [outcome.pooled.shape for outcome in outcomes] == [(8,), (8,)]
    assert [len(request.texts.values) for request in _requests(fake)] == [1, 1]


def test_long_texts_go_alone_once_the_cost_of_the_model_is_known(together: Together) -> None:
    class Costly(FakeEncoder):
        def unary(self, method: str, *others: Any) -> bytes:
            reply = super().unary(method, *others)
            if not method.endswith("GetModel"):
                return reply
            description = pb.GetModelResponse.FromString(reply)
            description.execution.cost.token_s = 1e-4
            return description.SerializeToString()

    long = "word " * 60
    for texts, counts in ((["a", long, "b"], [1, 2]), ([long, long], [1, 1])):
        fake = Costly()
        outcomes = together(fake, [_encode(text) for text in texts])
        assert [outcome.pooled.shape for outcome in outcomes] == [(8,)] * len(texts)
        assert sorted(len(request.texts.values) for request in _requests(fake)) == counts


def test_a_call_whose_sequences_met_a_dead_device_is_sent_again_alone(together: Together) -> None:
    class Died(FakeEncoder):
        def unary(self, method: str, request: bytes, *others: Any) -> bytes:
            reply = super().unary(method, request, *others)
            if not method.endswith("Encode") or not pb.EncodeRequest.FromString(request).calls:
                return reply
            response = pb.EncodeResponse.FromString(reply)
            response.failures.add(sequence=1, reason=pb.ErrorReason.Value("DEVICE_FAILED"), message="the device failed")
            return response.SerializeToString()

    fake = Died()
    outcomes = together(fake, [_encode("a"), _encode("b"), _encode("c")])
    assert [outcome.failure for outcome in outcomes] == [None] * 3
    assert sorted(len(request.texts.values) for request in _requests(fake)) == [1, 3]


def test_a_call_whose_time_is_up_while_it_waits_is_not_sent(together: Together) -> None:
    fake = FakeEncoder()
    (late,) = together(fake, [_encode("late", timeout_s=0.05)], until_done=True)
    assert isinstance(late, DeadlineExceeded)
    assert not _requests(fake)


def test_calls_that_have_ended_are_freed_without_the_garbage_collector(together: Together) -> None:
    gc.collect()
    gc.disable()
    try:
        together(FakeEncoder(), [_encode(text) for text in _TEXTS])
        assert not [each for each in gc.get_objects() if isinstance(each, Caller)]
    finally:
        gc.enable()


def test_a_child_process_forgets_the_calls_of_its_parent() -> None:
    with Client(transport=FakeEncoder()) as client:
        sharing = client._sharing
        assert sharing
        for _ in range(REQUESTS_PER_SERVER):  # As if other threads of the parent had sent them.
            sharing._requests.add(_caller(1.0))
            assert sharing._requests.next(0.0)
        sharing._pid = 0
        assert client.encode("a").pooled.shape == (8,)


def test_calls_with_other_options_or_names_have_requests_of_their_own(together: Together) -> None:
    fake = FakeEncoder(labels=["x"])
    calls: Sequence[Callable[[Any], Any]] = [
        _encode("a"),
        _encode("b", dtype="float16"),
        _encode("c", request_id="mine"),
        _encode("d", progress=lambda *_: None),
        _encode(["e"] * 9),
        lambda client: client.encode_tokens([[1, 2]]),
        lambda client: client.encode_features([np.zeros((2, 8))]),
        lambda client: client.classify(["f"]),
        lambda client: client.rerank("g", ["h"]),
        _encode("i"),
    ]
    outcomes = together(fake, calls)
    assert not [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    texts = sorted([*request.texts.values] for request in _requests(fake) if request.WhichOneof("input") == "texts")
    assert texts == [["a", "i"], ["b"], ["c"], ["d"], ["e"] * 9, ["f"]]
    assert "mine" in {request.request_id for request in _requests(fake)}
    assert len(_requests(fake)) == 9


def test_classifications_and_rankings_are_shared_too(together: Together) -> None:
    calls: list[Callable[[Any], Any]] = [
        lambda client: client.rerank("bread", ["fresh bread", "rain"]),
        lambda client: client.rerank("rain", ["fresh bread", "rain on stone", "bread"]),
    ]
    fake = FakeEncoder(labels=["x"])
    outcomes = together(fake, calls)
    assert len(_requests(fake)) == 1
    with Client(transport=FakeEncoder(labels=["x"])) as alone:
        assert [outcome.documents for outcome in outcomes] == [call(alone).documents for call in calls]


class _Async:
    def __init__(self, fake: FakeEncoder) -> None:
        self._fake = fake

    async def unary(self, *call: Any) -> bytes:
        await asyncio.sleep(0)
        return self._fake.unary(*call)

    async def close(self) -> None:
        self._fake.close()


async def test_calls_of_one_turn_of_the_event_loop_share_the_first_request() -> None:
    fake = FakeEncoder()
    async with AsyncClient(transport=_Async(fake)) as client:
        for _ in range(2):
            await asyncio.gather(*(client.encode(text) for text in _TEXTS))
    assert [list(request.texts.values) for request in fake.requests] == [_TEXTS] * 2


class _Slow(_Async):
    """Never answers texts with the word "slow", and notes cancellations."""

    cancelled = 0

    async def unary(self, method: str, request: bytes, *others: Any) -> bytes:
        if b"slow" in request:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        return await super().unary(method, request, *others)


async def test_a_cancelled_call_leaves_the_others_and_the_last_one_cancels_the_request() -> None:
    slow = _Slow(FakeEncoder())
    async with AsyncClient(transport=slow) as client:
        tasks = [asyncio.create_task(client.encode(f"slow {number}")) for number in range(3)]
        await asyncio.sleep(0.05)
        for ended, task in enumerate(tasks, 1):
            assert slow.cancelled == 0
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await asyncio.sleep(0)
            assert task.cancelled()
            assert sum(each.done() for each in tasks) == ended
        assert slow.cancelled == 1


async def test_a_call_whose_time_is_up_ends_alone() -> None:
    async with AsyncClient(transport=_Slow(FakeEncoder())) as client:
        longer = asyncio.create_task(client.encode("slow", timeout_s=0.28))
        with pytest.raises(DeadlineExceeded, match=r"no answer within 0\.2 s"):
            await client.encode("slow too", timeout_s=0.2)
        assert not longer.done()
        longer.cancel()


async def test_many_deadlines_need_one_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, timers = asyncio.get_running_loop(), []
    call_later = loop.call_later

    def noted(*arguments: Any) -> asyncio.TimerHandle:
        timers.append(call_later(*arguments))
        return timers[-1]

    async with AsyncClient(transport=_Slow(FakeEncoder())) as client:
        # Each deadline is earlier than those of the calls before.
        calls = [client.encode("slow", timeout_s=30 / (2 + number)) for number in range(20)]
        monkeypatch.setattr(loop, "call_later", noted)
        late = [client.encode("slow", timeout_s=0.1 + 0.01 * number) for number in range(5)]
        waiting = [asyncio.create_task(call) for call in calls]
        outcomes = await asyncio.gather(*late, return_exceptions=True)
        monkeypatch.undo()
        assert {type(outcome) for outcome in outcomes} == {DeadlineExceeded}
        own = [timer for timer in timers if "_expire" in repr(timer) and not timer.cancelled()]
        assert sum(timer.when() > loop.time() for timer in own) == 1
        for task in waiting:
            task.cancel()


def _caller(
    timeout_s: float,
    text: str = "a",
    now_s: float = 0.0,
    settings: CallSettings | None = None,
    options: RequestOptions | None = None,
) -> Caller:
    settings = settings or CallSettings(30.0, 8, {})
    call = OneTextCall(settings, TextInput(), [text], {**(options or {}), "timeout_s": timeout_s})
    return Caller(call, call.chunk(), now_s, lambda: None)


def _settings_with_cost(token_s: float) -> CallSettings:
    """Return the settings of calls to a model that takes a device this long for each token."""
    description = pb.GetModelResponse(max_tokens=512, max_text_tokens=512)
    description.execution.cost.token_s = token_s
    settings = CallSettings(30.0, 8, {})
    settings.descriptions["", ""] = description
    return settings


def _added(*callers: Caller, servers: int = 1) -> SharedRequests:
    """Return requests of which none is in flight, and the calls that wait for them."""
    requests = SharedRequests(servers)
    for caller in callers:
        requests.add(caller)
    return requests


def _leave(requests: SharedRequests, now_s: float = 0.0) -> list[SharedRequest]:
    """Send all requests that may be sent now."""
    return [*iter(lambda: requests.next(now_s), None)]


def _calls(requests: list[SharedRequest]) -> list[int]:
    """Return the number of calls of each request."""
    return [len(request.callers) for request in requests]


@pytest.mark.parametrize(
    ("timeouts_s", "groups"),
    [
        ([1.0, 1.0, 1.0], [3]),
        ([1.0, 1.5, 1.2], [3]),
        ([1.0, 1.6, 1.2], [1, 2]),
        ([10.0, 0.005, 10.0], [1, 1, 1]),
    ],
)
def test_deadlines_that_differ_much_share_no_request(timeouts_s: list[float], groups: list[int]) -> None:
    sent = _leave(_added(*map(_caller, timeouts_s)))
    assert _calls(sent) == groups
    for request in sent:
        assert request.deadline_s == max(caller.deadline_s for caller in request.callers)


@pytest.mark.parametrize("servers", [1, 2])
def test_a_call_waits_while_four_requests_are_in_flight_to_each_server(servers: int) -> None:
    requests = SharedRequests(servers)
    for _ in range(4 * servers):
        requests.add(_caller(1.0))
        (request,) = _leave(requests)
    requests.add(_caller(1.0))
    assert not _leave(requests)
    requests.end(request, 0.1)
    assert _calls(_leave(requests, 0.1)) == [1]


@pytest.mark.parametrize(
    ("servers", "in_flight", "least"),
    [(1, 3, 1), (1, 4, 1), (1, 5, 2), (1, 20, 17), (1, 32, 29), (1, 99, 29), (2, 20, 7)],
)
def test_calls_wait_until_they_are_nearly_as_many_as_those_in_flight(servers: int, in_flight: int, least: int) -> None:
    requests = _added(*(_caller(1.0) for _ in range(in_flight)), servers=servers)
    assert _calls(_leave(requests)) == [in_flight]
    for _ in range(least - 1):
        requests.add(_caller(1.0))
        assert not _leave(requests)
    requests.add(_caller(1.0))
    assert _calls(_leave(requests)) == [least]


def test_calls_do_not_wait_for_calls_with_other_options() -> None:
    requests = _added(*(_caller(1.0) for _ in range(20)))
    _leave(requests)
    requests.add(_caller(1.0))
    other = _caller(1.0, options={"dtype": "float16"})
    requests.add(other)
    assert [request.callers for request in _leave(requests)] == [[other]]


def test_calls_that_fill_a_request_wait_for_no_others() -> None:
    settings = _settings_with_cost(5e-5)
    sent = _leave(_added(*(_caller(1.0, "abc " * 400, settings=settings) for _ in range(200))))
    assert len(sent) == 4
    assert max(_calls(sent)) < 10


def test_a_call_without_time_to_wait_for_another_request_travels_alone() -> None:
    requests = _added(_caller(1.0))
    (first,) = _leave(requests)
    short, long = _caller(0.69), _caller(0.71)
    for caller in (short, long):
        assert requests.may_share(caller, 0.0)
        requests.add(caller)
    requests.round_trip_s = 0.3
    requests.end(first, 0.1)
    assert short.is_settled
    assert short.result() is None
    assert not long.is_settled
    assert [request.callers for request in _leave(requests, 0.1)] == [[long]]
    assert not requests.may_share(_caller(0.59), 0.0)
    assert requests.may_share(_caller(0.61), 0.0)


def test_a_refusal_says_nothing_of_the_time_that_a_request_takes() -> None:
    requests = SharedRequests(1)
    requests.round_trip_s = 0.3
    for is_answered in (False, True):
        requests.add(_caller(1.0))
        (request,) = _leave(requests)
        request.is_answered = is_answered
        requests.end(request, 0.001)
        assert requests.may_share(_caller(0.5), 0.0) is is_answered


@pytest.mark.parametrize(
    ("token_s", "words", "may_share", "count"),
    [(1e-7, 40, True, 128), (1e-7, 800, True, 81), (5e-5, 4, True, 90), (5e-5, 400, False, 1)],
)
def test_a_text_that_takes_the_device_for_long_travels_alone(
    token_s: float, words: int, may_share: bool, count: int
) -> None:
    settings = _settings_with_cost(token_s)
    callers = [_caller(1.0, "abc " * words, settings=settings) for _ in range(300)]
    assert {caller.may_share for caller in callers} == {may_share}
    assert _calls(_leave(_added(*callers)))[0] == count


def test_a_call_in_a_span_has_a_request_of_its_own(together: Together) -> None:
    fake = FakeEncoder()
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("test")

    def encode_in_span(client: Any) -> Any:
        with tracer.start_as_current_span("caller"):
            return asyncio.ensure_future(client.encode("in a span"))

    together(fake, [_encode("a"), encode_in_span, _encode("b")])
    assert sorted(sorted(request.texts.values) for request in _requests(fake)) == [["a", "b"], ["in a span"]]


class _Interceptor(grpc.UnaryUnaryClientInterceptor):
    """Does nothing."""

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        return continuation(details, request)


@pytest.mark.parametrize("options", [{"interceptors": [_Interceptor()]}, {"share_requests": False}])
def test_a_client_with_interceptors_shares_nothing(options: dict[str, Any]) -> None:
    with Client("localhost:1", **options) as client:
        assert client._sharing is None
