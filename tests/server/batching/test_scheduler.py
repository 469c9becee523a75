"""Every admitted request gets its own answer or its own error, whatever happens to its neighbours."""

import asyncio
import threading
from collections.abc import AsyncIterator

import numpy as np
import pytest
from numpy.typing import NDArray

from headwaiter_server.batching.cost import BatchLimits, CostModel
from headwaiter_server.batching.job import Outcome
from headwaiter_server.batching.scheduler import Scheduler
from headwaiter_server.errors import DeadlineExceeded, InferenceFailed, InvalidInput, Overloaded, Unavailable
from headwaiter_server.runtime.graph import Outputs
from headwaiter_server.runtime.packing import PackedBatch

LIMITS = BatchLimits(tokens=8, cells=1000)
COST = CostModel(launch_s=0.5, token_s=0.25, padded_s=0.0, cell_s=0.0)
QUEUE_TOKENS = 64
# Values that the model raises on, answers with an infinity to, and has infinite hidden rows for.
POISON, INFINITE, INFINITE_HIDDEN = 666, 777, 888
FREELY = 1000


class Device:
    """Answers with the sum of a sequence and with its values halved; raises on poison.

    Attributes:
        batches: the sequences of each batch it was given.
        pools: whether it gives pooled vectors.
    """

    def __init__(self) -> None:
        self.batches: list[list[list[int]]] = []
        self.pools = True
        self._allowed = threading.Semaphore(FREELY)
        self._entered = threading.Semaphore(0)

    def hold(self) -> None:
        """Let batches wait on the device from now on."""
        self._allowed, self._entered = threading.Semaphore(0), threading.Semaphore(0)

    async def busy(self) -> None:
        """Return once a batch has come to the device, after what `busy` has seen already."""
        await asyncio.to_thread(self._entered.acquire)

    def release(self, batches: int = FREELY) -> None:
        """Let so many batches run."""
        self._allowed.release(batches)

    def run(self, batch: PackedBatch, *, hidden: bool) -> Outputs:
        self.batches.append([part.tolist() for part in batch.split(batch.rows)])
        self._entered.release()
        self._allowed.acquire()
        if POISON in batch.rows:
            raise RuntimeError("the model chokes")
        rows = batch.rows.astype(np.float32)
        rows[rows == INFINITE] = np.inf
        pooled = np.array([[part.sum()] for part in batch.split(rows)], np.float32)
        rows[rows == INFINITE_HIDDEN] = np.inf
        return Outputs(pooled if self.pools else None, rows[:, None] / 2 if hidden else None)


class Log:
    """What the scheduler told its observer."""

    def __init__(self) -> None:
        self.ran_tokens: list[int] = []
        self.expired_sequences = 0

    def batch_ran(self, batch: PackedBatch, predicted_s: float, actual_s: float) -> None:
        self.ran_tokens.append(batch.tokens)

    def expired(self, sequences: int) -> None:
        self.expired_sequences += sequences


class Clock:
    """Stands still until a test moves it."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Bench:
    """A scheduler, and all that it depends on in a test's hand."""

    def __init__(self) -> None:
        self.device, self.log, self.clock = Device(), Log(), Clock()
        self.scheduler = Scheduler(self.device, COST, LIMITS, QUEUE_TOKENS, self.log, self.clock)

    def submit(
        self, *sequences: list[int], hidden: bool = False, deadline_s: float = float("inf")
    ) -> asyncio.Task[Outcome]:
        values: list[NDArray[np.generic]] = [np.array(sequence) for sequence in sequences]
        return asyncio.create_task(self.scheduler.submit(values, hidden=hidden, deadline_s=deadline_s))

    async def submit_behind(self, *requests: list[list[int]]) -> list[asyncio.Task[Outcome]]:
        """Queue requests while another one is held on the device."""
        self.device.hold()
        ahead = self.submit([1])
        await self.device.busy()
        tasks = [self.submit(*request) for request in requests]
        await asyncio.sleep(0)
        return [ahead, *tasks]


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    yield bench
    bench.device.release()
    await bench.scheduler.drain(30.0)
    assert bench.scheduler.queued_sequences == bench.scheduler.queued_tokens == 0


def _sums(outcome: Outcome) -> list[float]:
    assert outcome.pooled is not None
    return [float(vector[0]) for vector in outcome.pooled]


def _halves(outcome: Outcome) -> list[list[float]]:
    assert outcome.hidden is not None
    return [rows[:, 0].tolist() for rows in outcome.hidden]


async def test_a_request_is_split_over_batches_and_joined_in_the_order_it_was_sent(bench: Bench) -> None:
    sequences = [[5], [1, 2, 3], [9] * 20, [4, 4], [7, 7, 7], [2], [8] * 7]

    outcome = await bench.submit(*sequences, hidden=True)

    assert _sums(outcome) == [sum(sequence) for sequence in sequences]
    assert _halves(outcome) == [[value / 2 for value in sequence] for sequence in sequences]
    assert outcome.batches == len(bench.device.batches) > 1
    assert sorted(one for batch in bench.device.batches for one in batch) == sorted(sequences)
    assert bench.log.ran_tokens == [sum(map(len, batch)) for batch in bench.device.batches]


async def test_requests_that_wait_together_share_a_batch(bench: Bench) -> None:
    tasks = await bench.submit_behind([[1, 2]], [[3]], [[4], [5, 6]])
    bench.device.release()
    outcomes = await asyncio.gather(*tasks)
    assert [_sums(outcome) for outcome in outcomes] == [[1], [3], [3], [4, 11]]
    assert [sorted(batch) for batch in bench.device.batches] == [[[1]], [[1, 2], [3], [4], [5, 6]]]


async def test_only_who_asked_for_hidden_rows_gets_them_from_a_shared_batch(bench: Bench) -> None:
    (ahead,) = await bench.submit_behind()
    with_rows, without = bench.submit([2, 4], hidden=True), bench.submit([6], hidden=False)
    await asyncio.sleep(0)
    bench.device.release()
    await ahead
    assert _halves(await with_rows) == [[1.0, 2.0]]
    assert (await without).hidden is None
    assert len(bench.device.batches) == 2


async def test_a_model_without_pooling_answers_with_hidden_rows_alone(bench: Bench) -> None:
    bench.device.pools = False
    outcome = await bench.submit([2], [4, 6], hidden=True)
    assert outcome.pooled is None
    assert _halves(outcome) == [[1.0], [2.0, 3.0]]


async def test_waiting_for_its_own_batches_is_no_time_in_the_queue(bench: Bench) -> None:
    bench.device.hold()
    task = bench.submit([1] * 8, [2] * 8)
    for _ in range(2):
        await bench.device.busy()
        bench.clock.now_s += 2.0
        bench.device.release(1)
    outcome = await task
    assert (outcome.assemble_s, outcome.compute_s, outcome.computed_s, outcome.batches) == (0.0, 4.0, 4.0, 2)


async def test_a_drain_that_takes_too_long_tells_who_waits_that_the_server_is_unavailable(bench: Bench) -> None:
    tasks = await bench.submit_behind([[2]], [[3]])
    assert await bench.scheduler.drain(0.0) == 3
    for task in tasks:
        with pytest.raises(Unavailable, match="try another replica"):
            await task
    assert bench.scheduler.queued_sequences == 0
    bench.device.release()


async def test_a_request_is_done_when_its_last_batch_is(bench: Bench) -> None:
    bench.clock.now_s = 3.0
    bench.device.hold()
    task = bench.submit([1] * 8, [2] * 8)
    await bench.device.busy()
    bench.clock.now_s = 5.0
    bench.device.release()
    outcome = await task
    assert outcome.computed_s == 5.0
    assert outcome.batches == 2


async def test_a_full_queue_refuses_with_the_time_after_which_to_try_again(bench: Bench) -> None:
    ahead, *waiting = await bench.submit_behind([[1] * 60])
    assert (bench.scheduler.queued_sequences, bench.scheduler.queued_tokens) == (1, 60)

    with pytest.raises(Overloaded, match="holds 60 of 64 tokens and the request has 5: try again in") as refusal:
        await bench.submit([1] * 5)
    fits = bench.submit([2] * 4)

    # A full batch of 8 tokens costs 0.5 + 8 × 0.25 s, and 60 tokens wait.
    assert refusal.value.retry_after_s == pytest.approx(60 * 2.5 / 8) == bench.scheduler.estimated_wait_s
    assert refusal.value.limit == QUEUE_TOKENS
    bench.device.release()
    assert [_sums(outcome) for outcome in await asyncio.gather(ahead, *waiting, fits)] == [[1], [60], [8]]


async def test_a_request_that_no_queue_could_hold_is_invalid_rather_than_refused_for_now(bench: Bench) -> None:
    with pytest.raises(InvalidInput, match="has 65 tokens, and the server queues 64 at most: split it") as error:
        await bench.submit([1] * 32, [1] * 33)
    assert (error.value.limit, error.value.actual) == (64, 65)


async def test_what_is_cancelled_before_its_turn_never_runs(bench: Bench) -> None:
    ahead, gone, stays = await bench.submit_behind([[2], [3]], [[4]])
    gone.cancel()
    bench.device.release()
    assert [_sums(outcome) for outcome in await asyncio.gather(ahead, stays)] == [[1], [4]]
    assert gone.cancelled()
    assert bench.device.batches == [[[1]], [[4]]]
    assert bench.log.expired_sequences == 0


async def test_what_is_cancelled_while_it_runs_does_not_disturb_its_neighbours(bench: Bench) -> None:
    ahead, gone, stays = await bench.submit_behind([[2], [3]], [[4]])
    bench.device.release(1)
    await asyncio.gather(ahead, bench.device.busy())
    gone.cancel()
    bench.device.release()
    assert _sums(await stays) == [4]
    assert bench.device.batches == [[[1]], [[2], [3], [4]]]
    with pytest.raises(asyncio.CancelledError):
        await gone


async def test_what_expired_while_it_waited_is_dropped_unrun_and_counted(bench: Bench) -> None:
    (ahead,) = await bench.submit_behind()
    late, in_time = bench.submit([2], [3], deadline_s=5.0), bench.submit([4], deadline_s=9.0)
    await asyncio.sleep(0)
    bench.clock.now_s = 5.0
    bench.device.release()
    with pytest.raises(DeadlineExceeded, match="before the request's turn came"):
        await late
    assert [_sums(outcome) for outcome in await asyncio.gather(ahead, in_time)] == [[1], [4]]
    assert bench.device.batches == [[[1]], [[4]]]
    assert bench.log.expired_sequences == 2


async def test_all_of_an_expired_request_is_dropped_and_counted_where_planning_meets_only_a_part(bench: Bench) -> None:
    bench.device.hold()
    ahead = bench.submit([1])
    await bench.device.busy()
    oldest = bench.submit([3] * 7)
    await asyncio.sleep(0)
    bench.clock.now_s = 35.0
    # The oldest leads, having waited for longer than anyone should; looking at what is longer stops at 9 tokens.
    late, longer = bench.submit([2] * 8, [2] * 10, deadline_s=36.0), bench.submit([4] * 9)
    await asyncio.sleep(0)
    bench.clock.now_s = 40.0
    bench.device.release()
    with pytest.raises(DeadlineExceeded):
        await late
    assert [_sums(outcome) for outcome in await asyncio.gather(ahead, oldest, longer)] == [[1], [21], [36]]
    assert bench.log.expired_sequences == 2


async def test_a_caller_that_gave_up_at_its_deadline_counts_as_expired(bench: Bench) -> None:
    (ahead,) = await bench.submit_behind()
    late = bench.submit([2], [3], deadline_s=5.0)
    await asyncio.sleep(0)
    bench.clock.now_s = 5.0
    late.cancel()
    await asyncio.wait([late])
    assert bench.log.expired_sequences == 2
    assert bench.scheduler.queued_sequences == 0
    bench.device.release()
    await ahead


@pytest.mark.parametrize("bad", [POISON, INFINITE])
async def test_a_sequence_that_the_model_fails_on_fails_its_own_request_and_no_other(bench: Bench, bad: int) -> None:
    ahead, first, failing, last = await bench.submit_behind([[2], [3]], [[4], [bad]], [[5]])
    bench.device.release()
    outcomes = await asyncio.gather(ahead, first, last)
    assert [_sums(outcome) for outcome in outcomes] == [[1], [2, 3], [5]]
    with pytest.raises(InferenceFailed, match=r"^sequence 1: ") as error:
        await failing
    assert error.value.sequence == 1


async def test_hidden_rows_that_are_not_finite_fail_only_who_asked_for_them(bench: Bench) -> None:
    (ahead,) = await bench.submit_behind()
    asked = bench.submit([3], [INFINITE_HIDDEN, 1], hidden=True)
    good, unasked = bench.submit([2], hidden=True), bench.submit([INFINITE_HIDDEN])
    await asyncio.sleep(0)
    bench.device.release()
    await ahead
    assert _halves(await good) == [[1.0]]
    assert _sums(await unasked) == [INFINITE_HIDDEN]
    with pytest.raises(InferenceFailed, match="sequence 1: the model's answer to it is not finite"):
        await asked


async def test_what_is_left_of_a_failed_request_does_not_run(bench: Bench) -> None:
    with pytest.raises(InferenceFailed, match="sequence 0: the model failed on it") as error:
        await bench.submit([POISON] * 8, [2] * 8, [3] * 8)
    assert str(error.value.__cause__) == "the model chokes"
    await bench.scheduler.drain(30.0)
    assert bench.device.batches == [[[POISON] * 8]]


async def test_a_request_that_is_cancelled_while_its_batch_fails_is_not_tried_again(bench: Bench) -> None:
    ahead, failing, gone = await bench.submit_behind([[POISON]], [[2]])
    bench.device.release(1)
    await asyncio.gather(ahead, bench.device.busy())
    gone.cancel()
    bench.device.release()
    with pytest.raises(InferenceFailed):
        await failing
    assert bench.device.batches == [[[1]], [[POISON], [2]], [[POISON]]]


async def test_draining_answers_what_was_admitted_and_refuses_what_comes(bench: Bench) -> None:
    tasks = await bench.submit_behind([[2] * 8, [3] * 8], [[4]])
    draining = asyncio.create_task(bench.scheduler.drain(30.0))
    await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="shutting down: send the request to another replica"):
        await bench.submit([5])
    bench.device.release()
    await draining
    assert [_sums(task.result()) for task in tasks] == [[1], [16, 24], [4]]


async def test_draining_ends_when_all_that_waits_has_expired(bench: Bench) -> None:
    (ahead,) = await bench.submit_behind()
    late = bench.submit([2], deadline_s=5.0)
    draining = asyncio.create_task(bench.scheduler.drain(30.0))
    await asyncio.sleep(0)
    bench.clock.now_s = 5.0
    bench.device.release()
    await asyncio.wait_for(draining, 5)
    assert _sums(ahead.result()) == [1]
    with pytest.raises(DeadlineExceeded):
        await late


async def test_an_idle_scheduler_drains_at_once_and_still_serves_before(bench: Bench) -> None:
    assert _sums(await bench.submit([1])) == [1]
    assert _sums(await bench.submit([2])) == [2]
    await bench.scheduler.drain(30.0)


async def test_what_stops_the_scheduler_is_told_to_whoever_watches_it() -> None:
    class Broken(Log):
        def batch_ran(self, batch: PackedBatch, predicted_s: float, actual_s: float) -> None:
            raise ZeroDivisionError

    scheduler = Scheduler(Device(), COST, LIMITS, QUEUE_TOKENS, Broken(), Clock())
    request = asyncio.create_task(scheduler.submit([np.array([1])], hidden=False))
    with pytest.raises(ZeroDivisionError):
        await scheduler.failed()
    request.cancel()
