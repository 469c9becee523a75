"""Streams of any length, with both clients."""

import asyncio
import itertools
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import aclosing
from typing import Any

import numpy as np
import pytest

from headwaiter_client import AsyncClient, AsyncFakeEncoder, Client, FakeEncoder, InvalidInput
from headwaiter_client.transport.interface import CancelScope
from headwaiter_proto.rules.inputs import MAX_BYTES_OF_ONE_TEXT
from tests.client.blocking_encoders import AsyncBlockingEncoder, BlockingEncoder
from tests.client.client_runner import TEXTS, ClientRunner


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


def test_a_failure_in_a_stream_has_the_index_of_its_sequence(runner: ClientRunner) -> None:
    with pytest.raises(InvalidInput) as caught:
        runner.stream(FakeEncoder(), [*TEXTS[:599], "long " * 10_000])
    assert "599" in str(caught.value)
    assert caught.value.sequence == 599


def test_a_stream_reads_ahead_only_the_sequences_of_the_requests_in_flight() -> None:
    read = 0

    def texts() -> Iterator[str]:
        nonlocal read
        for read in itertools.count(1):
            yield f"text {read}"

    with Client(transport=FakeEncoder(), max_in_flight=3) as client:
        for one in itertools.islice(client.encode_stream(texts()), 1000):
            assert read <= one.index + 3 * 256 + 1


def test_a_stream_accepts_an_async_iterable() -> None:
    async def texts() -> AsyncIterator[str]:
        for text in TEXTS:
            yield text
            await asyncio.sleep(0)

    async def stream() -> list[int]:
        async with AsyncClient(transport=AsyncFakeEncoder(FakeEncoder())) as client:
            return [one.index async for one in client.encode_stream(texts())]

    assert asyncio.run(stream()) == list(range(600))


@pytest.mark.usefixtures("clock")
def test_an_unordered_stream_yields_results_in_the_order_of_arrival() -> None:
    with Client(transport=BlockingEncoder(release_after=3), max_in_flight=2) as client:
        results = list(client.encode_stream(TEXTS * 2, ordered=False, request_id="r"))
    assert results[0].index == 256
    assert sorted(one.index for one in results) == list(range(1200))


@pytest.mark.usefixtures("clock")
async def test_an_unordered_async_stream_yields_results_in_the_order_of_arrival() -> None:
    async with AsyncClient(transport=AsyncBlockingEncoder(release_after=3), max_in_flight=2) as client:
        results = [one async for one in client.encode_stream(TEXTS * 2, ordered=False, request_id="r")]
    assert results[0].index == 256
    assert sorted(one.index for one in results) == list(range(1200))


class _SynchronousExecutor(ThreadPoolExecutor):
    """Runs each function to its end before `submit` returns."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done = super().submit(fn, *args, **kwargs)
        wait([done])
        return done


class _Clock:
    """A clock that stands still until a test sets `now_s`."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    """Replace the clock that measures how long a source takes."""
    clock = _Clock()
    monkeypatch.setattr("headwaiter_client.calls.splitting.time", clock)
    monkeypatch.setattr("headwaiter_client.aio.time", clock)
    return clock


@pytest.mark.parametrize("ordered", [True, False])
def test_a_slow_source_gets_results_while_it_is_read(
    monkeypatch: pytest.MonkeyPatch, clock: _Clock, ordered: bool
) -> None:
    monkeypatch.setattr("headwaiter_client.thread_runner.ThreadPoolExecutor", _SynchronousExecutor)
    read = 0

    def texts() -> Iterator[str]:
        nonlocal read
        for read in range(20):
            clock.now_s += 1.0
            yield f"text {read}"

    with Client(transport=FakeEncoder()) as client:
        for one in client.encode_stream(texts(), ordered=ordered):
            assert read == one.index


@pytest.mark.parametrize("ordered", [True, False])
async def test_a_slow_async_source_gets_results_while_it_is_read(clock: _Clock, ordered: bool) -> None:
    read = 0

    async def texts() -> AsyncIterator[str]:
        nonlocal read
        for read in range(20):
            clock.now_s += 1.0
            yield f"text {read}"
            for _ in range(20):  # Let the request be answered.
                await asyncio.sleep(0)

    async with AsyncClient(transport=AsyncFakeEncoder(FakeEncoder())) as client:
        async for one in client.encode_stream(texts(), ordered=ordered):
            assert read <= one.index + 1


@pytest.mark.parametrize("ordered", [True, False])
def test_a_slow_reader_always_has_the_maximum_of_requests_in_flight(
    monkeypatch: pytest.MonkeyPatch, clock: _Clock, ordered: bool
) -> None:
    monkeypatch.setattr("headwaiter_client.thread_runner.ThreadPoolExecutor", _SynchronousExecutor)
    fake = FakeEncoder()
    with Client(transport=fake, max_in_flight=3) as client:
        for one in client.encode_stream((f"text {number}" for number in range(256 * 7)), ordered=ordered):
            clock.now_s += 1.0
            assert len(fake.requests) == min(7, one.index // 256 + 3)


async def test_a_slow_async_reader_always_has_the_maximum_of_requests_in_flight(clock: _Clock) -> None:
    fake = FakeEncoder()

    async def texts() -> AsyncIterator[str]:
        for number in range(256 * 7):
            yield f"text {number}"
            await asyncio.sleep(0)

    async with AsyncClient(transport=AsyncFakeEncoder(fake), max_in_flight=3) as client:
        async for one in client.encode_stream(texts()):
            clock.now_s += 1.0
            for _ in range(20):  # Let all requests be answered.
                await asyncio.sleep(0)
            assert len(fake.requests) == min(7, one.index // 256 + 3)


async def test_closing_an_async_stream_cancels_its_requests() -> None:
    encoder = AsyncBlockingEncoder()
    async with AsyncClient(transport=encoder) as client:
        async with aclosing(client.encode_stream(TEXTS, request_id="r")) as stream:
            assert (await anext(stream)).index == 0
        assert encoder.cancelled == ["r.256", "r.512"]


def test_a_closed_stream_sends_no_more_requests() -> None:
    fake = FakeEncoder()
    with Client(transport=fake, max_in_flight=1) as client:
        stream = client.encode_stream(TEXTS)
        assert next(stream).index == 0
        stream.close()
    assert len(fake.requests) == 1


def test_the_memory_of_a_stream_does_not_grow_with_its_length() -> None:
    def peak_bytes(count: int) -> int:
        with Client(transport=_ForgettingEncoder(), max_in_flight=2) as client:
            tracemalloc.start()
            assert sum(1 for _ in client.encode_stream(f"text {number % 10}" for number in range(count))) == count
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        return peak

    peak_bytes(1)
    assert peak_bytes(6_000) < 2 * peak_bytes(1_500)


class _ForgettingEncoder(FakeEncoder):
    """Does not keep the requests of earlier calls."""

    def unary(
        self,
        method: str,
        request: bytes,
        timeout_s: float,
        request_id: str | None = None,
        cancel_scope: CancelScope | None = None,
    ) -> bytes:
        self.requests.clear()
        return super().unary(method, request, timeout_s, request_id, cancel_scope)
