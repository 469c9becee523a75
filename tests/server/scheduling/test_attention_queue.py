"""Requests for attention weights run one at a time, and each gets its own answer or its own error."""

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from headwaiter_proto.rules.errors import DeadlineExceeded, InferenceFailed, Overloaded, Unavailable
from headwaiter_server.runtime.attention_weights import AttentionSelection, AttentionWeights
from headwaiter_server.scheduling.attention_queue import MAX_WAITING, AttentionWeightsQueue
from headwaiter_server.scheduling.job import Interval

SELECTION = AttentionSelection([0], [0])
Answer = tuple[AttentionWeights, Interval]
# Token ids for which the fake model raises an error, or answers with NaN.
POISON, NOT_A_NUMBER = 666, 777


class FakeModel:
    """Answers with the sum of the sequence, once the test has released it.

    Attributes:
        ran: the sequences that ran.
        released: while this event is clear, runs are held.
        entered: set when a run has started.
    """

    def __init__(self) -> None:
        self.ran: list[list[int]] = []
        self.released, self.entered = threading.Event(), threading.Event()
        self.released.set()

    def run(self, sequence: NDArray[np.generic], selection: AttentionSelection) -> AttentionWeights:
        self.ran.append(sequence.tolist())
        self.entered.set()
        assert self.released.wait(10)
        if POISON in sequence:
            raise RuntimeError("the model failed")
        total = np.array([[[[np.nan if NOT_A_NUMBER in sequence else sequence.astype(np.float32).sum()]]]], np.float32)
        return AttentionWeights(total, None)


class Harness:
    """A queue with a fake model and clock."""

    def __init__(self) -> None:
        self.model = FakeModel()
        self.loads = self.expired_sequences = 0
        self.now_s = 0.0
        self.queue = AttentionWeightsQueue(self._load, self._note_expired, lambda: self.now_s)

    def _load(self) -> Callable[..., AttentionWeights]:
        self.loads += 1
        return self.model.run

    def _note_expired(self, sequences: int) -> None:
        self.expired_sequences += sequences

    def submit(self, *values: int, deadline_s: float = float("inf")) -> asyncio.Task[Answer]:
        return asyncio.create_task(self.queue.submit(np.array(values), SELECTION, deadline_s=deadline_s))

    async def hold(self) -> asyncio.Task[Answer]:
        """Submit a sequence and hold its run until the model is released."""
        self.model.released.clear()
        held = self.submit(1)
        await asyncio.to_thread(self.model.entered.wait)
        return held


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    harness = Harness()
    yield harness
    harness.model.released.set()
    harness.queue.drain()


async def test_each_request_gets_its_own_answer_in_the_order_of_arrival(harness: Harness) -> None:
    assert harness.loads == 0
    answers = await asyncio.gather(*(harness.submit(value, 10) for value in range(5)))
    assert [attention.weights.item() for attention, _ in answers] == [10, 11, 12, 13, 14]
    assert harness.model.ran == [[value, 10] for value in range(5)]
    assert harness.loads == 1


async def test_a_model_that_cannot_be_loaded_fails_the_request_and_is_loaded_by_the_next_one() -> None:
    harness = Harness()
    errors = [OSError("the disk is gone")]

    def load() -> Callable[..., AttentionWeights]:
        if errors:
            raise errors.pop()
        return harness.model.run

    harness.queue = AttentionWeightsQueue(load, harness._note_expired)
    with pytest.raises(InferenceFailed, match="loaded") as failure:
        await harness.submit(1)
    assert (failure.value.sequence, str(failure.value.__cause__)) == (None, "the disk is gone")
    assert (await harness.submit(2))[0].weights.item() == 2


async def test_a_full_queue_refuses_requests_with_a_delay(harness: Harness) -> None:
    held = await harness.hold()
    waiting = [harness.submit(value) for value in range(MAX_WAITING)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match=rf"\b{MAX_WAITING}\b") as refusal:
        await harness.submit(99)
    assert (refusal.value.retry_after_s or 0) > 0
    assert refusal.value.limit == MAX_WAITING
    harness.model.released.set()
    await asyncio.gather(held, *waiting)
    assert (await harness.submit(99))[0].weights.item() == 99


async def test_a_request_whose_deadline_passed_while_it_waited_never_runs(harness: Harness) -> None:
    held = await harness.hold()
    late, in_time = harness.submit(2, deadline_s=5.0), harness.submit(3, deadline_s=50.0)
    await asyncio.sleep(0)
    harness.now_s = 5.0
    harness.model.released.set()
    with pytest.raises(DeadlineExceeded, match="deadline"):
        await late
    await asyncio.gather(held, in_time)
    assert (harness.model.ran, harness.expired_sequences) == ([[1], [3]], 1)


@pytest.mark.parametrize(("now_s", "expired"), [(0.0, 0), (4.95, 1), (5.0, 1)])
async def test_a_request_that_is_cancelled_while_it_waits_never_runs(
    harness: Harness, now_s: float, expired: int
) -> None:
    held = await harness.hold()
    gone = harness.submit(2, deadline_s=5.0)
    await asyncio.sleep(0)
    harness.now_s = now_s
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    harness.model.released.set()
    await held
    await harness.submit(3)
    assert (harness.model.ran, harness.expired_sequences) == ([[1], [3]], expired)


async def test_a_sequence_that_is_cancelled_while_it_waits_is_freed_at_once(harness: Harness) -> None:
    held = await harness.hold()
    sequence = np.arange(5)
    reference = weakref.ref(sequence)
    gone = asyncio.create_task(harness.queue.submit(sequence, SELECTION))
    del sequence
    await asyncio.sleep(0)
    assert reference() is not None
    gone.cancel()
    await asyncio.wait([gone])
    del gone
    gc.collect()
    assert reference() is None
    harness.model.released.set()
    await held


async def test_after_its_caller_has_gone_a_run_still_delays_and_limits_the_waiting_requests(harness: Harness) -> None:
    held = await harness.hold()
    held.cancel()
    waiting = [harness.submit(value) for value in range(MAX_WAITING)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await harness.submit(99)
    harness.model.released.set()
    assert [attention.weights.item() for attention, _ in await asyncio.gather(*waiting)] == list(range(MAX_WAITING))


async def test_the_error_of_a_run_whose_caller_has_gone_is_not_logged(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    harness.model.released.clear()
    bad = harness.submit(POISON)
    await asyncio.to_thread(harness.model.entered.wait)
    bad.cancel()
    waiting = harness.submit(4)
    harness.model.released.set()
    await waiting
    gc.collect()
    assert harness.model.ran == [[POISON], [4]]
    assert caplog.records == []


@pytest.mark.parametrize(
    ("value", "cause"),
    [(POISON, RuntimeError), (NOT_A_NUMBER, type(None))],
)
async def test_a_faulty_sequence_fails_its_own_request_and_no_other(harness: Harness, value: int, cause: type) -> None:
    bad, good = harness.submit(value), harness.submit(4)
    with pytest.raises(InferenceFailed) as failure:
        await bad
    assert "0" in str(failure.value)
    assert failure.value.sequence == 0
    assert isinstance(failure.value.__cause__, cause)
    assert (await good)[0].weights.item() == 4


async def test_a_draining_queue_answers_admitted_requests_and_refuses_new_ones(harness: Harness) -> None:
    held = await harness.hold()
    waiting = harness.submit(2)
    await asyncio.sleep(0)
    harness.queue.drain()
    with pytest.raises(Unavailable):
        await harness.submit(3)
    harness.model.released.set()
    await asyncio.gather(held, waiting)
    assert harness.model.ran == [[1], [2]]
