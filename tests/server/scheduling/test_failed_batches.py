"""A faulty sequence fails alone, a lack of memory lowers the limits, and a dead device ends the scheduler."""

import asyncio
import gc
import threading
import weakref

import numpy as np
import pytest

from headwaiter_proto.rules.errors import DeviceFailed, InferenceFailed, InvalidInput, Unavailable
from headwaiter_server.runtime.errors import DeviceLost
from headwaiter_server.scheduling.cost import BatchLimits, Shape
from headwaiter_server.scheduling.job import Job, Outcome
from headwaiter_server.scheduling.observer import FailureCause
from tests.support.server.fakes import (
    INFINITE,
    INFINITE_HIDDEN,
    POISON,
    UNLIMITED,
    FakeObserver,
    Harness,
    drain,
    halves,
    sums,
)


@pytest.mark.parametrize("bad", [POISON, INFINITE])
async def test_a_faulty_sequence_fails_its_own_request_and_no_other(harness: Harness, bad: int) -> None:
    held, first, failing, last = await harness.submit_behind_held_batch([[2], [3]], [[4], [bad]], [[5]])
    harness.device.release()
    outcomes = await asyncio.gather(held, first, last)
    assert [sums(outcome) for outcome in outcomes] == [[1], [2, 3], [5]]
    with pytest.raises(InferenceFailed, match=r"\b1\b") as error:
        await failing
    assert error.value.sequence == 1


async def test_the_time_of_a_failed_batch_counts_as_time_of_the_device(harness: Harness) -> None:
    harness.device.hold()
    failing = harness.submit([POISON])
    await harness.device.busy()
    harness.clock.now_s += 2.0
    harness.device.release()
    with pytest.raises(InferenceFailed):
        await failing
    assert harness.observer.busy_s == 2.0


async def test_hidden_rows_that_are_not_finite_fail_only_requests_for_hidden_rows(harness: Harness) -> None:
    (held,) = await harness.submit_behind_held_batch()
    with_rows = harness.submit([3], [INFINITE_HIDDEN, 1], hidden=True)
    good, without_rows = harness.submit([2], hidden=True), harness.submit([INFINITE_HIDDEN])
    await asyncio.sleep(0)
    harness.device.release()
    await held
    assert halves(await good) == [[1.0]]
    assert sums(await without_rows) == [INFINITE_HIDDEN]
    with pytest.raises(InferenceFailed, match="finite") as error:
        await with_rows
    assert error.value.sequence == 1


@pytest.mark.parametrize("bad", [POISON, INFINITE])
async def test_the_other_sequences_of_a_partial_request_are_answered_when_one_is_faulty(
    harness: Harness, bad: int
) -> None:
    unfit = InvalidInput("is unfit", sequence=1)
    outcome = await harness.submit([2], [9], [bad], [3] * 8, hidden=True, failures={1: unfit})
    assert (sums(outcome), halves(outcome)) == ([2, 24], [[1.0], [1.5] * 8])
    assert outcome.failures[1] is unfit
    assert {index: type(error) for index, error in outcome.failures.items()} == {1: InvalidInput, 2: InferenceFailed}
    # The sequence that was known to be unfit did not run.
    assert all([9] not in batch for batch in harness.device.batches)


async def test_a_partial_request_whose_sequences_all_fail_still_has_an_outcome(harness: Harness) -> None:
    outcome = await harness.submit([POISON], [POISON], failures={})
    assert (outcome.pooled, outcome.batches) == (None, ())
    assert sorted(outcome.failures) == [0, 1]


async def test_the_other_sequences_of_a_failed_request_do_not_run(harness: Harness) -> None:
    with pytest.raises(InferenceFailed, match=r"\b0\b") as error:
        await harness.submit([POISON] * 8, [2] * 8, [3] * 8)
    assert error.value.sequence == 0
    assert isinstance(error.value.__cause__, RuntimeError)
    await harness.scheduler.drain(30.0)
    assert harness.device.batches == [[[POISON] * 8]]


async def test_the_first_of_two_faulty_sequences_is_the_one_that_is_reported(harness: Harness) -> None:
    with pytest.raises(InferenceFailed) as error:
        await harness.submit([1], [2], [POISON], [POISON], [5], [6])
    assert error.value.sequence == 2
    assert len(harness.device.batches) == 6


async def test_a_request_that_is_cancelled_while_its_batch_fails_does_not_run_again(harness: Harness) -> None:
    held, failing, gone = await harness.submit_behind_held_batch([[POISON]], [[2]])
    harness.device.release(1)
    await asyncio.gather(held, harness.device.busy())
    gone.cancel()
    harness.device.release()
    with pytest.raises(InferenceFailed):
        await failing
    assert harness.device.batches == [[[1]], [[POISON], [2]], [[POISON]]]


async def test_failed_raises_an_error_of_the_loop() -> None:
    class Broken(FakeObserver):
        def batch_ran(self, shape: Shape, predicted_s: float, actual_s: float, packing_s: float) -> None:
            raise ZeroDivisionError

    harness = Harness(observer=Broken())
    request = harness.submit([1])
    with pytest.raises(ZeroDivisionError):
        await harness.scheduler.failed()
    request.cancel()


async def test_one_poisoned_sequence_in_a_batch_of_32_fails_alone() -> None:
    harness = Harness(BatchLimits(tokens=32, cells=1000))
    values = [*range(100, 119), POISON, *range(119, 131)]
    held, *tasks = await harness.submit_behind_held_batch(*([[value]] for value in values))
    harness.device.release()
    await held
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert len(harness.device.batches[1]) == 32
    for value, answer in zip(values, answers, strict=True):
        if value == POISON:
            assert isinstance(answer, InferenceFailed)
        else:
            assert isinstance(answer, Outcome)
            assert sums(answer) == [value]
    # One for the batch, and one for each part of 16, 8, 4, 2 and 1 sequences that failed.
    assert harness.device.probes_left == UNLIMITED - 6
    await harness.scheduler.drain(30.0)


async def test_a_device_that_dies_after_its_first_probe_runs_few_more_batches() -> None:
    harness = Harness(BatchLimits(tokens=64, cells=1000))
    harness.device.fails_batches, harness.device.probes_left = True, 1
    requests = [harness.submit([value]) for value in range(1, 65)]
    errors = await asyncio.gather(*requests, return_exceptions=True)
    assert {type(error) for error in errors} == {DeviceFailed}
    # The whole batch and its first half.
    assert len(harness.device.batches) == 2
    await harness.scheduler.drain(30.0)


async def test_an_idle_scheduler_does_not_keep_the_last_answer(harness: Harness) -> None:
    values = np.array([1, 2, 3])
    answered = weakref.ref(values)
    await harness.scheduler.submit(harness.queue, Job([values], hidden=True))
    del values
    await asyncio.sleep(0.01)
    gc.collect()
    assert answered() is None


async def test_when_the_device_dies_every_request_is_answered_and_the_scheduler_ends(harness: Harness) -> None:
    tasks = await harness.submit_behind_held_batch([[2]], [[3] * 8])
    tasks.append(harness.submit([4], failures={}))
    await asyncio.sleep(0)
    harness.device.dead = True
    harness.device.release()
    errors = await asyncio.gather(*tasks, return_exceptions=True)
    # Only the batch that the device ran may have killed the device.
    assert [type(error) for error in errors] == [DeviceFailed, Unavailable, Unavailable, Unavailable]
    assert harness.queue.queued_sequences == 0
    with pytest.raises(DeviceLost, match="the GPU fell off the bus"):
        await harness.scheduler.failed()
    with pytest.raises(Unavailable):
        await harness.submit([5])


async def test_the_batch_that_another_device_runs_when_a_device_dies_counts_as_one_that_may_have_killed_it() -> None:
    # Two sessions of one GPU die together, and the one that notices first may not be the one to blame.
    harness = Harness(devices=2)
    dying, other = harness.devices
    for device in harness.devices:
        device.hold()
    requests = [harness.submit([value] * 8) for value in (2, 3)]
    for device in harness.devices:
        await device.busy()
    dying.dead = True
    dying.release()
    errors = await asyncio.gather(*requests, return_exceptions=True)
    assert [type(error) for error in errors] == [DeviceFailed] * 2
    with pytest.raises(DeviceLost):
        await harness.scheduler.failed()
    other.release()
    await drain(harness.scheduler)


@pytest.mark.parametrize("dies", [False, True])
async def test_no_thread_outlives_the_scheduler(dies: bool) -> None:
    before = set(threading.enumerate())
    harness = Harness()
    harness.device.dead = dies
    await asyncio.gather(harness.submit([2]), return_exceptions=True)
    started = [
        thread
        for thread in threading.enumerate()
        if thread not in before and thread.name.startswith(("device", "packing"))
    ]
    assert started
    await drain(harness.scheduler)
    for thread in started:
        await asyncio.to_thread(thread.join, 10)
    assert not any(thread.is_alive() for thread in started)


@pytest.mark.parametrize(
    ("most_tokens", "values", "cause", "tokens_limit"),
    [
        # The whole batch is too large; each half fits.
        (4, [1] * 8, FailureCause.SIZE, 4),
        # The halves are too large as well.
        (2, [1] * 8, FailureCause.SIZE, 2),
        # A faulty sequence, and memory for the whole batch.
        (UNLIMITED, [1, 2, POISON, 4, 5, 6, 7, 8], FailureCause.SEQUENCE, 8),
        # A faulty sequence in the first half; the second half does not fit.
        (2, [1, 2, POISON, 4, 5, 6, 7, 8], FailureCause.SIZE, 2),
    ],
)
async def test_a_batch_that_fails_while_its_halves_run_lowers_the_limits(
    harness: Harness, most_tokens: int, values: list[int], cause: FailureCause, tokens_limit: int
) -> None:
    held, *tasks = await harness.submit_behind_held_batch(*([[value]] for value in values))
    harness.device.most_tokens = most_tokens
    harness.device.release()
    await held
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [value for value, answer in zip(values, answers, strict=True) if isinstance(answer, Exception)] == [
        value for value in values if value == POISON
    ]
    await asyncio.sleep(0.01)
    assert harness.observer.failure_causes == [cause]
    assert harness.queue.limits.current.tokens == tokens_limit


async def test_after_a_memory_failure_full_batches_fit(harness: Harness) -> None:
    harness.device.most_tokens = 4
    outcome = await harness.submit(*([value] for value in range(48)))
    assert sums(outcome) == list(range(48))
    # Of six full batches, the first fails, and perhaps those that were planned before its halves had run.
    assert 1 <= sum(len(batch) > 4 for batch in harness.device.batches) <= 3
