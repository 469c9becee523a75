"""Streams of any length, with both clients."""

import asyncio
import itertools
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any

import numpy as np
import pytest

from headwaiter_client import AsyncClient, AsyncFakeEncoder, Cancelled, Client, FakeEncoder, InvalidInput
from headwaiter_proto.rules.sequences import MAX_BYTES_OF_ONE_TEXT
from tests.support.client.blocking_encoder import BlockingEncoder
from tests.support.client.both_clients import InThreads, open_client, wait_until
from tests.support.client.client_runner import TEXTS, ClientRunner, texts_sent


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize(
    ("method", "sequences"),
    [
        ("encode", TEXTS),
        ("encode_tokens", [[1, n] for n in range(300)]),
        ("encode_features", [[[0.5, n]] for n in range(300)]),
        ("encode", []),
    ],
    ids=["texts", "ids", "features", "nothing"],
)
def test_a_stream_yields_one_result_for_each_sequence_of_a_generator(
    runner: ClientRunner, method: str, sequences: list[Any], ordered: bool
) -> None:
    results = runner.stream(FakeEncoder(feature_width=2), (sequence for sequence in sequences), ordered=ordered)
    indices = [one.index for one in results]
    assert (indices if ordered else sorted(indices)) == list(range(len(sequences)))
    if sequences:
        expected = runner.call(FakeEncoder(feature_width=2), method, sequences).pooled
        np.testing.assert_array_equal(np.stack([one.pooled for one in results]), expected[indices])


def test_a_stream_result_holds_all_facts_about_its_sequence(runner: ClientRunner) -> None:
    fake = FakeEncoder(max_tokens=5)
    texts = ["one two three four", "x" * (MAX_BYTES_OF_ONE_TEXT + 1), "one"]
    truncated, bad, good = runner.stream(
        fake, texts, truncation="right", partial=True, offsets=True, hidden=True, dtype="int8"
    )

    assert (truncated.index, truncated.length, truncated.original_tokens, truncated.failure) == (0, 5, 6, None)
    assert (truncated.pooled_int8.shape, truncated.hidden_int8.shape, truncated.offsets.shape) == ((8,), (5, 8), (5, 2))
    np.testing.assert_array_equal(truncated.pooled, truncated.pooled_int8.to_float32())
    np.testing.assert_array_equal(truncated.hidden, truncated.hidden_int8.to_float32())
    assert (bad.index, bad.length) == (1, 0)
    assert type(bad.failure) is InvalidInput
    assert bad.failure.sequence == 1
    for output in ("pooled", "hidden", "pooled_int8", "hidden_int8", "offsets"):
        with pytest.raises(InvalidInput) as caught:
            getattr(bad, output)
        assert caught.value is bad.failure
    assert (good.index, good.length, good.original_tokens, good.model.name) == (2, 3, None, "fake")


@pytest.mark.usefixtures("patient")
def test_a_stream_reads_ahead_only_the_sequences_of_the_requests_in_flight() -> None:
    read = 0

    def texts() -> Iterator[str]:
        nonlocal read
        for read in itertools.count(1):
            yield f"text {read}"

    with Client(transport=FakeEncoder(), max_in_flight=3) as client:
        for one in itertools.islice(client.encode_stream(texts()), 1000):
            assert read <= one.index + 3 * 256 + 1


@pytest.mark.usefixtures("patient")
async def test_an_unordered_stream_yields_results_in_the_order_of_arrival(client_class: Any) -> None:
    fake = InThreads(BlockingEncoder(release_after=3))
    async with open_client(client_class, fake, max_in_flight=2) as client:
        results = [one async for one in client.encode_stream(TEXTS * 2, ordered=False, request_id="r")]
    assert results[0].index == 256
    assert sorted(one.index for one in results) == list(range(1200))


@pytest.mark.parametrize("ordered", [True, False])
async def test_a_dialogue_gets_each_result_before_it_gives_the_next_text(client_class: Any, ordered: bool) -> None:
    answers: asyncio.Queue[int] = asyncio.Queue()

    async def texts() -> AsyncIterator[str]:
        for number in range(4):
            yield f"text {number}"
            assert await asyncio.wait_for(answers.get(), 30) == number

    async with open_client(client_class, FakeEncoder()) as client:
        async for one in client.encode_stream(texts(), ordered=ordered):
            await answers.put(one.index)
    assert answers.empty()


async def test_what_a_pausing_source_gave_is_sent_together_after_a_tenth_of_a_second(client_class: Any) -> None:
    released = asyncio.Event()

    async def texts() -> AsyncIterator[str]:
        for text in ["first", "second"]:
            yield text
        await released.wait()
        yield "third"

    fake = FakeEncoder()
    async with open_client(client_class, fake) as client:
        stream = client.encode_stream(texts())
        begin_s = time.monotonic()
        assert (await anext(stream)).index == 0
        assert 0.05 < time.monotonic() - begin_s < 5
        assert texts_sent(fake) == [["first", "second"]]
        assert (await anext(stream)).index == 1
        released.set()
        assert [one.index async for one in stream] == [2]


@pytest.mark.usefixtures("patient")
async def test_a_slow_reader_always_has_the_maximum_of_requests_in_flight(client_class: Any) -> None:
    fake = FakeEncoder(max_request_sequences=16)

    async def texts() -> AsyncIterator[str]:
        for number in range(16 * 7):
            yield f"text {number}"

    async with open_client(client_class, fake, max_in_flight=3) as client:
        async for one in client.encode_stream(texts()):
            expected = min(7, one.index // 16 + 3)
            end_s = time.monotonic() + 30
            while len(texts_sent(fake)) < expected:
                assert time.monotonic() < end_s
                await asyncio.sleep(0.001)
            assert len(texts_sent(fake)) == expected


class _SourceError(Exception):
    pass


async def test_the_results_before_an_error_of_the_source_come_first(client_class: Any) -> None:
    def texts() -> Iterator[str]:
        yield from TEXTS
        raise _SourceError

    async with open_client(client_class, FakeEncoder()) as client:
        stream = client.encode_stream(texts())
        assert [(await anext(stream)).index for _ in TEXTS] == list(range(600))
        with pytest.raises(_SourceError):
            await anext(stream)


async def test_the_results_before_a_sequence_that_cannot_be_sent_come_first(client_class: Any) -> None:
    async with open_client(client_class, FakeEncoder()) as client:
        stream = client.encode_stream(["a text", "another", None])
        assert [(await anext(stream)).index for _ in range(2)] == [0, 1]
        with pytest.raises(InvalidInput) as caught:
            await anext(stream)
    assert caught.value.sequence == 2


def test_a_stream_can_be_closed_while_its_source_waits() -> None:
    released = threading.Event()
    read = []

    def texts() -> Iterator[str]:
        read.append("a text")
        yield "a text"
        released.wait(30)
        for number in itertools.count():
            read.append(f"late {number}")
            yield f"late {number}"

    fake = FakeEncoder()
    with Client(transport=fake) as client:
        stream = client.encode_stream(texts())
        assert next(stream).index == 0
        stream.close()
        (reader,) = [thread for thread in threading.enumerate() if thread.name == "headwaiter-source"]
        released.set()
        reader.join(30)
    assert read == ["a text", "late 0"]
    assert len(texts_sent(fake)) == 1


async def test_an_async_source_that_waits_is_cancelled_when_its_stream_is_closed() -> None:
    cancelled = False

    async def texts() -> AsyncIterator[str]:
        nonlocal cancelled
        yield "a text"
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled = True
            raise

    fake = FakeEncoder()
    async with AsyncClient(transport=AsyncFakeEncoder(fake)) as client:
        async with aclosing(client.encode_stream(texts())) as stream:
            assert (await anext(stream)).index == 0
        assert cancelled
    assert len(texts_sent(fake)) == 1


def test_a_closed_client_ends_a_stream_that_waits_for_its_source() -> None:
    waiting, released = threading.Event(), threading.Event()

    def texts() -> Iterator[str]:
        waiting.set()
        released.wait(30)
        yield "too late"

    client = Client(transport=FakeEncoder())
    with ThreadPoolExecutor(1) as pool:
        results = pool.submit(lambda: list(client.encode_stream(texts())))
        assert waiting.wait(30)
        client.close()
        with pytest.raises(Cancelled):
            results.result(30)
        released.set()


def test_a_stream_of_a_client_that_is_closed_meanwhile_is_cancelled() -> None:
    class ClosingEncoder(FakeEncoder):
        """Closes the client while it asks for the limits."""

        def unary(self, *call: Any) -> bytes:
            reply = super().unary(*call)
            client.close()
            return reply

    client = Client(transport=ClosingEncoder())
    with pytest.raises(Cancelled):
        list(client.encode_stream(TEXTS))


def test_the_source_of_a_stream_sees_the_context_variables_of_the_caller() -> None:
    variable = ContextVar("variable", default="unset")
    seen = []

    def texts() -> Iterator[str]:
        seen.append(variable.get())
        yield "a text"

    variable.set("of the caller")
    with Client(transport=FakeEncoder()) as client:
        assert len(list(client.encode_stream(texts()))) == 1
    assert seen == ["of the caller"]


async def test_other_tasks_run_while_a_fast_plain_source_is_read() -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    def texts() -> Iterator[str]:
        end_s = time.monotonic() + 0.1
        while time.monotonic() < end_s:
            yield "a text"

    async with AsyncClient(transport=AsyncFakeEncoder(FakeEncoder()), max_in_flight=10_000) as client:
        await client.encode(["a text"] * 40)  # Asks for the limits.
        ticker = asyncio.create_task(tick())
        stream = client.encode_stream(texts(), pooled=True)
        await anext(stream)
        await stream.aclose()
        ticker.cancel()
    assert ticks >= 5


@pytest.mark.usefixtures("patient")
async def test_closing_an_async_stream_cancels_its_requests() -> None:
    encoder = BlockingEncoder()
    transport = InThreads(encoder)
    async with AsyncClient(transport=transport) as client:
        async with aclosing(client.encode_stream(TEXTS, request_id="r")) as stream:
            assert (await anext(stream)).index == 0
            await wait_until(lambda: len(encoder.held) == 2)
        assert transport.cancelled == ["r.256", "r.512"]
        encoder.release.set()


def test_a_closed_stream_sends_no_more_requests() -> None:
    fake = FakeEncoder()
    with Client(transport=fake, max_in_flight=1) as client:
        stream = client.encode_stream(TEXTS)
        assert next(stream).index == 0
        stream.close()
    assert len(fake.requests) == 1


def test_the_memory_of_a_stream_does_not_grow_with_its_length() -> None:
    def peak_bytes(count: int) -> int:
        with Client(transport=_ForgettingEncoder(max_request_sequences=64), max_in_flight=2) as client:
            tracemalloc.start()
            assert sum(1 for _ in client.encode_stream(f"text {number % 10}" for number in range(count))) == count
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        return peak

    peak_bytes(1)
    # A result takes more than 300 bytes. The limit leaves room for objects that the garbage collector frees later.
    assert peak_bytes(6_400) < 2 * peak_bytes(400)


class _ForgettingEncoder(FakeEncoder):
    """Does not keep the requests of earlier calls."""

    def unary(self, *call: Any) -> bytes:
        self.requests.clear()
        return super().unary(*call)
