"""A faulty sequence fails alone; a dead device fails its batches and is reopened."""

import asyncio
import gc
import threading
import weakref

import numpy as np
import pytest

from headwaiter_proto.rules.errors import DeviceFailed, InferenceFailed, InvalidInput, Unavailable
from headwaiter_server.runtime.errors import BundleChanged, DeviceLost
from headwaiter_server.scheduling.cost import BatchLimits, Shape
from headwaiter_server.scheduling.queued_request import Outcome
from headwaiter_server.scheduling.worker import Session
from tests.server.scheduling.fakes import (
    COST,
    INFINITE,
    INFINITE_HIDDEN,
    LIMITS,
    POISON,
    PROBE,
    UNLIMITED,
    FakeDevice,
    FakeObserver,
    Harness,
    halves,
    one_model,
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
    unfit = InvalidInput("sequence 1: unfit", sequence=1)
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


async def test_a_partial_request_fails_if_the_device_dies(harness: Harness) -> None:
    harness.device.dead = True
    with pytest.raises(Unavailable):
        await harness.submit([2], [3], failures={})


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

    scheduler, queue = one_model([FakeDevice()], observer=Broken())
    request = asyncio.create_task(scheduler.submit(queue, [np.array([1])], hidden=False))
    with pytest.raises(ZeroDivisionError):
        await scheduler.failed()
    request.cancel()


async def test_one_poisoned_sequence_in_a_batch_of_32_fails_alone_after_two_probes() -> None:
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
    assert harness.device.probes_left == UNLIMITED - 2
    assert harness.available == []
    await harness.scheduler.drain(30.0)


async def test_a_device_that_dies_while_its_batch_is_bisected_is_found_dead(harness: Harness) -> None:
    held, first, second = await harness.submit_behind_held_batch([[2]], [[3]])
    harness.device.release(1)
    await asyncio.gather(held, harness.device.busy())
    harness.device.fails_batches, harness.device.probes_left = True, 1
    harness.device.release()
    # Neither sequence is to blame: the device died between the first probe and their runs.
    with pytest.raises(DeviceFailed):
        await first
    with pytest.raises(Unavailable, match="device"):
        await second
    assert harness.available[0] is False


async def test_a_device_that_dies_after_its_first_probe_runs_few_more_batches() -> None:
    harness = Harness(BatchLimits(tokens=64, cells=1000))
    harness.device.fails_batches, harness.device.probes_left = True, 1
    requests = [harness.submit([value]) for value in range(1, 65)]
    errors = await asyncio.gather(*requests, return_exceptions=True)
    assert {type(error) for error in errors} == {DeviceFailed, Unavailable}
    # The whole batch, its first half, a quarter and so on, down to the first sequence.
    assert len(harness.device.batches) == 7
    await harness.scheduler.drain(30.0)


async def test_an_idle_scheduler_keeps_neither_the_last_answer_nor_a_dead_device() -> None:
    harness = Harness()
    values = np.array([1, 2, 3])
    answered = weakref.ref(values)
    await harness.scheduler.submit(harness.queue, [values], hidden=True)
    del values
    harness.device.fails_batches, harness.device.probes_left = True, 1
    dead = weakref.ref(harness.device)
    requests = [harness.submit([value]) for value in (1, 2, 3)]
    harness.device = harness.reopened
    assert all(isinstance(error, Exception) for error in await asyncio.gather(*requests, return_exceptions=True))
    del requests
    await harness.back.wait()
    gc.collect()
    assert (answered(), dead()) == (None, None)
    await harness.scheduler.drain(30.0)


async def test_all_requests_fail_at_once_with_unavailable_when_the_device_dies(harness: Harness) -> None:
    tasks = await harness.submit_behind_held_batch([[2]], [[3] * 8], [[4]])
    harness.device.dead = True
    harness.device.release()
    for task in tasks:
        with pytest.raises(Unavailable, match="device"):
            await task
    assert harness.available[0] is False
    assert harness.queue.queued_sequences == 0


async def test_a_dead_device_is_reopened_and_serves_again(harness: Harness) -> None:
    harness.device.dead = True
    with pytest.raises(Unavailable):
        await harness.submit([2])
    await harness.back.wait()
    assert harness.available == [False, True]
    assert sums(await harness.submit([3], [4])) == [3, 4]
    assert harness.reopened.batches == [[[3], [4]]]


async def test_a_device_that_died_with_a_planned_batch_is_reopened_and_serves_again(harness: Harness) -> None:
    (held,) = await harness.submit_behind_held_batch()
    planned = harness.submit([2])
    harness.clock.now_s = 0.749
    await asyncio.sleep(0.01)
    assert len(harness.planned) == 1
    harness.device.dead = True
    harness.device.release()
    with pytest.raises(Unavailable):
        await held
    with pytest.raises(Unavailable):
        await planned
    await harness.back.wait()
    assert sums(await harness.submit([3])) == [3]


async def test_while_the_device_is_dead_no_request_is_admitted(harness: Harness) -> None:
    harness.device.dead = harness.reopened.dead = True
    for _ in range(2):
        with pytest.raises(Unavailable, match="device"):
            await harness.submit([2])
    assert harness.available == [False]


async def test_when_a_device_dies_another_device_continues_to_serve(harness: Harness) -> None:
    dying, healthy = FakeDevice(), FakeDevice()
    available: list[bool] = []
    scheduler, queue = one_model([dying, healthy], on_available=available.append, clock=harness.clock)
    dying.dead = True
    with pytest.raises(Unavailable):
        await scheduler.submit(queue, [np.array([2])], hidden=False)
    assert sums(await scheduler.submit(queue, [np.array([3])], hidden=False)) == [3]
    assert False not in available
    await scheduler.drain(30.0)


async def test_a_device_that_stays_dead_stops_the_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwaiter_server.scheduling.devices._PAUSES_S", (0.0, 0.0))
    harness = Harness()
    harness.device.dead = harness.reopened.dead = True
    with pytest.raises(Unavailable):
        await harness.submit([2])
    with pytest.raises(DeviceLost, match="there is no device"):
        await harness.scheduler.failed()


async def test_a_device_whose_bundle_has_changed_is_given_up_at_once() -> None:
    attempts = []

    def reopen() -> FakeDevice:
        attempts.append(1)
        raise BundleChanged("model.onnx was replaced")

    scheduler, other_queue = one_model([FakeDevice()], FakeDevice)
    ((worker, other_session),) = other_queue.sessions.items()
    device = FakeDevice()
    device.dead = True
    queue = scheduler.add_model({worker: Session(device, reopen, PROBE)}, COST, LIMITS, FakeObserver())
    with pytest.raises(Unavailable):
        await scheduler.submit(queue, [np.array([1])], hidden=False)
    with pytest.raises(DeviceLost, match=r"model\.onnx"):
        await scheduler.failed()
    assert len(attempts) == 1
    # Another model was reopened on the device before.
    assert other_session.graph is None


async def test_no_thread_outlives_the_scheduler() -> None:
    before = set(threading.enumerate())
    harness = Harness()
    harness.device.dead = True
    with pytest.raises(Unavailable):
        await harness.submit([2])
    await harness.back.wait()
    assert sums(await harness.submit([2])) == [2]
    started = [
        thread
        for thread in threading.enumerate()
        if thread not in before and thread.name.startswith(("device", "packing"))
    ]
    assert started
    await harness.scheduler.drain(30.0)
    for thread in started:
        await asyncio.to_thread(thread.join, 10)
    assert not any(thread.is_alive() for thread in started)
