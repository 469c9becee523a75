"""The two ends of a socket between processes: calls, requests, cancellations, and the end of a process."""

import asyncio
import gc
import socket
import time
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from headwaiter_proto.rules.errors import ModelNotFound, Overloaded, Unavailable
from headwaiter_server.processes import link as link_module
from headwaiter_server.processes.link import Link, Methods, Refused
from headwaiter_server.processes.messages import HEADER, Kind, write_error, write_objects


@asynccontextmanager
async def pair(methods: Methods | None = None, **options: Any) -> AsyncIterator[tuple[Link, Link]]:
    """Return two ends; the second one has methods."""
    ours, theirs = socket.socketpair()
    asks, answers = Link("one", {}), Link("two", methods or {}, **options)
    await asks.open(ours)
    await answers.open(theirs)
    try:
        yield asks, answers
    finally:
        asks.close()
        answers.close()
        await asyncio.wait({asks.closed, answers.closed})


async def test_an_error_keeps_its_class_and_tells_whether_the_request_was_refused() -> None:
    async def fail(kind: str) -> None:
        raise ModelNotFound("no such model") if kind == "failed" else Refused(Overloaded("full", retry_after_s=1.0))

    async with pair({"fail": fail}) as (asks, _):
        with pytest.raises(ModelNotFound, match="no such model"):
            await asks.call("fail", "failed")
        with pytest.raises(Refused) as refused:
            await asks.call("fail", "refused")
        assert repr(refused.value.error) == repr(Overloaded("full", retry_after_s=1.0))


async def test_requests_and_their_cancellations_reach_the_other_end_by_number() -> None:
    requests: list[tuple[int, bytes]] = []
    cancelled: list[int] = []
    seen = asyncio.Event()

    def cancel(number: int) -> None:
        cancelled.append(number)
        seen.set()

    async with (
        pair(on_request=lambda *request: requests.append(request), on_cancel=cancel) as (asks, answers),
        asyncio.timeout(10),
    ):
        tasks = [asyncio.create_task(asks.ask(Kind.REQUEST, [b"one", b"two"])) for _ in range(2)]
        while len(requests) < 2:  # noqa: ASYNC110 - the callback is no coroutine
            await asyncio.sleep(0)
        tasks[0].cancel()
        await seen.wait()
        assert ([payload for _, payload in requests], cancelled) == ([b"onetwo"] * 2, [requests[0][0]])
        answers.send(Kind.RAISED, requests[1][0], write_error(Unavailable("gone")))
        with pytest.raises(Unavailable, match="gone"):
            await tasks[1]


async def test_when_a_process_ends_what_waits_for_it_fails_at_once_and_what_works_for_it_stops() -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    async with pair({"hang": hang}) as (asks, answers), asyncio.timeout(10):
        call = asyncio.create_task(asks.call("hang"))
        await started.wait()
        answers.close()
        with pytest.raises(Unavailable, match="has ended"):
            await call
        await stopped.wait()
        with pytest.raises(Unavailable, match="has ended"):
            await asks.call("hang")


async def test_a_large_message_is_not_copied_again_at_each_piece() -> None:
    requests: list[bytes] = []
    link = Link("one", {}, on_request=lambda _, payload: requests.append(payload))
    payload = bytes(16 << 20)
    message = HEADER.pack(len(payload), Kind.REQUEST, 0) + payload
    started_s = time.process_time()
    for place in range(0, len(message), 4096):
        link.data_received(message[place : place + 4096])
    # Joined at each piece, 32 GB would be copied, which takes 10 s.
    assert time.process_time() - started_s < 2.0
    assert requests == [payload]


async def test_a_call_that_is_cancelled_before_it_begins_leaves_nothing() -> None:
    async def hang() -> None:
        await asyncio.sleep(60)

    async with pair({"hang": hang}) as (asks, answers), asyncio.timeout(10):
        # Both messages arrive in one piece.
        asks.send(Kind.CALL, 7, write_objects("hang"))
        asks.send(Kind.CANCEL, 7, [])
        await asyncio.sleep(0.1)
        assert not answers._answering


async def test_a_process_that_does_not_read_is_cut_off_before_it_fills_the_memory() -> None:
    ours, theirs = socket.socketpair()
    link = Link("deaf", {}, max_unread_bytes=1 << 20)
    await link.open(ours)
    with theirs:
        async with asyncio.timeout(10):
            while not link.closed.done():
                link.send(Kind.VECTORS, 0, [bytes(1 << 16)])
                await asyncio.sleep(0)


async def test_a_process_that_does_not_read_leaves_room_for_callers_that_have_not_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link_module, "_MAX_UNSENT_BYTES", 4 << 20)
    ours, theirs = socket.socketpair()
    link = Link("deaf", {})
    await link.open(ours)

    async def ask() -> asyncio.Task[Any]:
        asking = asyncio.create_task(link.ask(Kind.REQUEST, [bytes(1 << 18)]))
        await asyncio.sleep(0)
        return asking

    def buffered_bytes() -> int:
        assert link._transport is not None
        return link._unsent_bytes + link._transport.get_write_buffer_size()

    with theirs:
        # Each caller goes before the next one comes; the first messages are in the socket by then.
        for _ in range(1000):
            gone = await ask()
            await asyncio.sleep(0)
            gone.cancel()
            await asyncio.sleep(0)
        assert buffered_bytes() < 1 << 20
        # These stay.
        asking = [await ask() for _ in range(100)]
        assert buffered_bytes() < 6 << 20
        with pytest.raises(Refused) as refused:
            await asking[-1]
        assert isinstance(refused.value.error, Overloaded)
        assert refused.value.error.retry_after_s == 1.0
        link.close()
        await asyncio.wait(asking)


async def test_a_row_that_waits_does_not_keep_the_outputs_of_its_whole_batch() -> None:
    ours, theirs = socket.socketpair()
    link = Link("deaf", {})
    await link.open(ours)
    with theirs:
        while not link._paused:
            link.send(Kind.VECTORS, 0, [bytes(1 << 16)])
            await asyncio.sleep(0)
        outputs = np.zeros((1000, 100), np.float32)
        kept = weakref.ref(outputs)
        link.send(Kind.VECTORS, 0, [outputs[7]])
        del outputs
        gc.collect()
        assert kept() is None
        link.close()


async def test_what_waits_for_a_process_arrives_complete_and_in_order_without_what_was_cancelled() -> None:
    requests: list[bytes] = []
    cancelled: list[int] = []
    ours, theirs = socket.socketpair()
    asks = Link("slow", {})
    answers = Link("two", {}, lambda _, payload: requests.append(payload), cancelled.append)
    await asks.open(ours)
    payloads = [bytes([number]) * size for number, size in enumerate([1, 1 << 20, 7, 1 << 19, 1 << 10] * 4)]
    tasks = [asyncio.create_task(asks.ask(Kind.REQUEST, [payload])) for payload in payloads]
    await asyncio.sleep(0.01)
    for task in tasks[-3:]:
        task.cancel()
    await asyncio.sleep(0.01)
    await answers.open(theirs)
    async with asyncio.timeout(10):
        while len(requests) < len(payloads) - 3:  # noqa: ASYNC110 - the callback is no coroutine
            await asyncio.sleep(0)
    assert requests == payloads[:-3]
    assert (cancelled, asks._unsent_bytes) == ([], 0)
    for link in (asks, answers):
        link.close()
        await link.closed
    await asyncio.wait(tasks)
