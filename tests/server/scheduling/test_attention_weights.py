"""Requests for attention run one at a time, and each gets its own answer or its own error."""

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from headwaiter_server.errors import DeadlineExceeded, InferenceFailed, Overloaded, Unavailable
from headwaiter_server.runtime.attention_weights import Attention, Selection
from headwaiter_server.scheduling.attention_weights import MAX_WAITING, Attended, Attender

SELECTION = Selection([0], [0])
# Values that the model raises on, and answers with a NaN to.
POISON, NOT_A_NUMBER = 666, 777


class Graph:
    """Answers with a sequence's sum, where a test lets it.

    Attributes:
        ran: the sequences it was given.
        released: while clear, it waits.
        entered: set when a sequence has come.
    """

    def __init__(self) -> None:
        self.ran: list[list[int]] = []
        self.released, self.entered = threading.Event(), threading.Event()
        self.released.set()

    def run(self, sequence: NDArray[np.generic], selection: Selection) -> Attention:
        self.ran.append(sequence.tolist())
        self.entered.set()
        assert self.released.wait(10)
        if POISON in sequence:
            raise RuntimeError("the model chokes")
        total = np.array([[[[np.nan if NOT_A_NUMBER in sequence else sequence.astype(np.float32).sum()]]]], np.float32)
        return Attention(total, None)


class Bench:
    """An attender, and all that it depends on in a test's hand."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.loads = self.expired_sequences = 0
        self.now_s = 0.0
        self.attender = Attender(self._load, self, lambda: self.now_s)

    def _load(self) -> Graph:
        self.loads += 1
        return self.graph

    def expired(self, sequences: int) -> None:
        self.expired_sequences += sequences

    def submit(self, *values: int, deadline_s: float = float("inf")) -> asyncio.Task[Attended]:
        return asyncio.create_task(self.attender.submit(np.array(values), SELECTION, deadline_s=deadline_s))

    async def hold(self) -> asyncio.Task[Attended]:
        """Keep the graph busy with a sequence until it is released."""
        self.graph.released.clear()
        ahead = self.submit(1)
        await asyncio.to_thread(self.graph.entered.wait)
        return ahead


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    yield bench
    bench.graph.released.set()
    bench.attender.drain()


async def test_each_request_gets_its_own_answer_in_the_order_they_came(bench: Bench) -> None:
    answers = await asyncio.gather(*(bench.submit(value, 10) for value in range(5)))
    assert [answer.attention.weights.item() for answer in answers] == [10, 11, 12, 13, 14]
    assert bench.graph.ran == [[value, 10] for value in range(5)]


async def test_the_graph_is_loaded_once_and_when_the_first_request_comes(bench: Bench) -> None:
    assert bench.loads == 0
    for _ in range(2):
        await bench.submit(1)
    assert bench.loads == 1


async def test_a_graph_that_cannot_be_loaded_fails_the_request_and_is_tried_again() -> None:
    bench = Bench()
    loads: Iterator[OSError | Graph] = iter([OSError("the disk is gone"), bench.graph])

    def load() -> Graph:
        loaded = next(loads)
        if isinstance(loaded, Exception):
            raise loaded
        return loaded

    bench.attender = Attender(load, bench)
    with pytest.raises(InferenceFailed, match="bundle's graph of attention weights cannot be loaded") as failure:
        await bench.submit(1)
    assert (failure.value.sequence, str(failure.value.__cause__)) == (None, "the disk is gone")
    assert (await bench.submit(2)).attention.weights.item() == 2


async def test_beyond_a_few_that_wait_requests_are_refused_with_a_delay(bench: Bench) -> None:
    ahead = await bench.hold()
    waiting = [bench.submit(value) for value in range(MAX_WAITING)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="8 requests for attention wait already: try again in") as refusal:
        await bench.submit(99)
    assert (refusal.value.retry_after_s or 0) > 0
    bench.graph.released.set()
    await asyncio.gather(ahead, *waiting)
    assert (await bench.submit(99)).attention.weights.item() == 99


async def test_a_request_whose_deadline_passed_while_it_waited_never_runs(bench: Bench) -> None:
    ahead = await bench.hold()
    late, patient = bench.submit(2, deadline_s=5.0), bench.submit(3, deadline_s=50.0)
    await asyncio.sleep(0)
    bench.now_s = 5.0
    bench.graph.released.set()
    with pytest.raises(DeadlineExceeded, match="the deadline passed before the request's turn came"):
        await late
    await asyncio.gather(ahead, patient)
    assert (bench.graph.ran, bench.expired_sequences) == ([[1], [3]], 1)


@pytest.mark.parametrize(("now_s", "expired"), [(0.0, 0), (5.0, 1)], ids=["caller gone", "deadline passed"])
async def test_a_request_that_is_cancelled_while_it_waits_never_runs(bench: Bench, now_s: float, expired: int) -> None:
    ahead = await bench.hold()
    gone = bench.submit(2, deadline_s=5.0)
    await asyncio.sleep(0)
    bench.now_s = now_s
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    bench.graph.released.set()
    await ahead
    await bench.submit(3)
    assert (bench.graph.ran, bench.expired_sequences) == ([[1], [3]], expired)


async def test_what_is_cancelled_while_it_waits_is_let_go_at_once(bench: Bench) -> None:
    ahead = await bench.hold()
    sequence = np.arange(5)
    held = weakref.ref(sequence)
    gone = asyncio.create_task(bench.attender.submit(sequence, SELECTION))
    del sequence
    await asyncio.sleep(0)
    assert held() is not None
    gone.cancel()
    await asyncio.wait([gone])
    del gone
    gc.collect()
    assert held() is None
    bench.graph.released.set()
    await ahead


async def test_a_run_whose_caller_has_gone_keeps_the_others_waiting_and_counts_them(bench: Bench) -> None:
    ahead = await bench.hold()
    ahead.cancel()
    waiting = [bench.submit(value) for value in range(MAX_WAITING)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await bench.submit(99)
    bench.graph.released.set()
    assert [answer.attention.weights.item() for answer in await asyncio.gather(*waiting)] == list(range(MAX_WAITING))


@pytest.mark.parametrize(
    ("value", "sentence", "cause"),
    [
        (POISON, "sequence 0: the model failed on it", "the model chokes"),
        (NOT_A_NUMBER, "sequence 0: the model's answer to it is not finite", "None"),
    ],
)
async def test_a_failure_is_the_requests_own(bench: Bench, value: int, sentence: str, cause: str) -> None:
    bad, good = bench.submit(value), bench.submit(4)
    with pytest.raises(InferenceFailed) as failure:
        await bad
    assert (str(failure.value), failure.value.sequence, str(failure.value.__cause__)) == (sentence, 0, cause)
    assert (await good).attention.weights.item() == 4


async def test_draining_answers_what_was_admitted_and_refuses_the_rest(bench: Bench) -> None:
    ahead = await bench.hold()
    waiting = bench.submit(2)
    await asyncio.sleep(0)
    bench.attender.drain()
    with pytest.raises(Unavailable, match="the server is shutting down: send the request to another replica"):
        await bench.submit(3)
    bench.graph.released.set()
    await asyncio.gather(ahead, waiting)
    assert bench.graph.ran == [[1], [2]]
