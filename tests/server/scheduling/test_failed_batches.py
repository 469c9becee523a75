"""What fails, fails alone: a sequence, a request, or a device."""

import asyncio
import threading

import numpy as np
import pytest

from headwaiter_server.errors import InferenceFailed, InvalidInput, Unavailable
from headwaiter_server.runtime.errors import DeviceLost
from headwaiter_server.scheduling.cost import BatchLimits, Shape
from headwaiter_server.scheduling.job import Outcome
from headwaiter_server.scheduling.scheduler import Scheduler
from headwaiter_server.scheduling.worker import Worker
from tests.server.scheduling.stand_ins import (
    COST,
    FREELY,
    INFINITE,
    INFINITE_HIDDEN,
    LIMITS,
    POISON,
    PROBE,
    QUEUE,
    Bench,
    Device,
    Log,
    halves,
    sums,
)


@pytest.mark.parametrize("bad", [POISON, INFINITE])
async def test_a_sequence_that_the_model_fails_on_fails_its_own_request_and_no_other(bench: Bench, bad: int) -> None:
    ahead, first, failing, last = await bench.submit_behind([[2], [3]], [[4], [bad]], [[5]])
    bench.device.release()
    outcomes = await asyncio.gather(ahead, first, last)
    assert [sums(outcome) for outcome in outcomes] == [[1], [2, 3], [5]]
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
    assert halves(await good) == [[1.0]]
    assert sums(await unasked) == [INFINITE_HIDDEN]
    with pytest.raises(InferenceFailed, match="sequence 1: the model's answer to it is not finite"):
        await asked


@pytest.mark.parametrize("bad", [POISON, INFINITE])
async def test_a_sequence_that_the_model_fails_on_leaves_the_rest_of_a_partial_request_its_answers(
    bench: Bench, bad: int
) -> None:
    unfit = InvalidInput("sequence 1: unfit", sequence=1)
    outcome = await bench.submit([2], [9], [bad], [3] * 8, hidden=True, failures={1: unfit})
    assert (sums(outcome), halves(outcome)) == ([2, 24], [[1.0], [1.5] * 8])
    assert outcome.failures[1] is unfit
    assert {index: type(error) for index, error in outcome.failures.items()} == {1: InvalidInput, 2: InferenceFailed}
    # What was known to be unfit did not run.
    assert all([9] not in batch for batch in bench.device.batches)


async def test_a_partial_request_whose_sequences_all_fail_has_an_outcome_all_the_same(bench: Bench) -> None:
    outcome = await bench.submit([POISON], [POISON], failures={})
    assert (outcome.pooled, outcome.computed_s, outcome.batches) == (None, None, 0)
    assert sorted(outcome.failures) == [0, 1]


async def test_a_partial_request_fails_where_the_device_does(bench: Bench) -> None:
    bench.device.dead = True
    with pytest.raises(Unavailable):
        await bench.submit([2], [3], failures={})


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


async def test_what_stops_the_scheduler_is_told_to_whoever_watches_it() -> None:
    class Broken(Log):
        def batch_ran(self, shape: Shape, predicted_s: float, actual_s: float) -> None:
            raise ZeroDivisionError

    scheduler = Scheduler([Worker(Device(), Device, PROBE)], COST, LIMITS, QUEUE, Broken())
    request = asyncio.create_task(scheduler.submit([np.array([1])], hidden=False))
    with pytest.raises(ZeroDivisionError):
        await scheduler.failed()
    request.cancel()


async def test_one_poisoned_sequence_in_a_batch_of_32_fails_alone_and_the_device_is_asked_once() -> None:
    bench = Bench(BatchLimits(tokens=32, cells=1000))
    values = [*range(100, 119), POISON, *range(119, 131)]
    ahead, *tasks = await bench.submit_behind(*([[value]] for value in values))
    bench.device.release()
    await ahead
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert len(bench.device.batches[1]) == 32
    for value, answer in zip(values, answers, strict=True):
        if value == POISON:
            assert isinstance(answer, InferenceFailed)
        else:
            assert isinstance(answer, Outcome)
            assert sums(answer) == [value]
    assert bench.device.probes_left == FREELY - 1
    assert bench.available == []
    await bench.scheduler.drain(30.0)


async def test_a_device_that_dies_while_its_batch_is_tried_in_parts_is_found_out(bench: Bench) -> None:
    ahead, first, second = await bench.submit_behind([[2]], [[3]])
    bench.device.release(1)
    await asyncio.gather(ahead, bench.device.busy())
    bench.device.chokes, bench.device.probes_left = True, 1
    bench.device.release()
    with pytest.raises(InferenceFailed):
        await first
    with pytest.raises(Unavailable, match="the device failed and is being reopened"):
        await second
    assert bench.available[0] is False


async def test_who_is_in_flight_when_the_device_dies_is_told_at_once_to_go_elsewhere(bench: Bench) -> None:
    tasks = await bench.submit_behind([[2]], [[3] * 8], [[4]])
    bench.device.dead = True
    bench.device.release()
    for task in tasks:
        with pytest.raises(Unavailable, match="the device failed and is being reopened: try another replica"):
            await task
    assert bench.available[0] is False
    assert bench.scheduler.queued_sequences == 0


async def test_a_device_that_died_is_reopened_and_serves_again(bench: Bench) -> None:
    bench.device.dead = True
    with pytest.raises(Unavailable):
        await bench.submit([2])
    await bench.back.wait()
    assert bench.available == [False, True]
    assert sums(await bench.submit([2], [3])) == [2, 3]
    assert bench.reopened.batches == [[[2], [3]]]


async def test_while_the_device_is_dead_nothing_is_admitted(bench: Bench) -> None:
    bench.device.dead = bench.reopened.dead = True
    for _ in range(2):
        with pytest.raises(Unavailable, match="the device failed and is being reopened"):
            await bench.submit([2])
    assert bench.available == [False]


async def test_where_another_device_is_left_it_serves_on(bench: Bench) -> None:
    dying, healthy = Device(), Device()
    available: list[bool] = []
    workers = [Worker(dying, Device, PROBE, bench.clock), Worker(healthy, Device, PROBE, bench.clock)]
    scheduler = Scheduler(workers, COST, LIMITS, QUEUE, Log(), available.append, bench.clock)
    dying.dead = True
    with pytest.raises(Unavailable):
        await scheduler.submit([np.array([2])], hidden=False)
    assert sums(await scheduler.submit([np.array([3])], hidden=False)) == [3]
    assert False not in available
    await scheduler.drain(30.0)


async def test_a_device_that_stays_dead_stops_the_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwaiter_server.scheduling.worker._REOPEN_AFTER_S", (0.0, 0.0))
    bench = Bench()
    bench.device.dead = bench.reopened.dead = True
    with pytest.raises(Unavailable):
        await bench.submit([2])
    with pytest.raises(DeviceLost, match="cannot be reopened"):
        await bench.scheduler.failed()


async def test_no_thread_outlives_the_scheduler() -> None:
    before = set(threading.enumerate())
    bench = Bench()
    bench.device.dead = True
    with pytest.raises(Unavailable):
        await bench.submit([2])
    await bench.back.wait()
    assert sums(await bench.submit([2])) == [2]
    await bench.scheduler.drain(30.0)
    started = [
        thread
        for thread in threading.enumerate()
        if thread not in before and thread.name.startswith(("device", "packing"))
    ]
    assert started
    for thread in started:
        await asyncio.to_thread(thread.join, 10)
    assert not any(thread.is_alive() for thread in started)
