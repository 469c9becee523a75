"""A device that hangs ends the scheduler, and all callers are answered."""

import asyncio
import threading
from typing import Any
from unittest.mock import patch

import pytest

from headwaiter_proto.rules.errors import Unavailable
from headwaiter_server.runtime.errors import DeviceLost
from headwaiter_server.runtime.graph import GraphOutputs
from headwaiter_server.runtime.packing import PackedBatch, pack
from headwaiter_server.scheduling import worker as worker_module
from headwaiter_server.scheduling.job import Outcome
from tests.support.server.fakes import HANG, POISON, PROBE, FakeDevice, Harness, drain, sums

# A fake second lasts this long; the clock advances by _STEP_S at once, and the watchdog looks at it in between.
_STEP_S, _PAUSE_S = 4.0, 0.002


@pytest.fixture(autouse=True)
def _frequent_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwaiter_server.scheduling.worker._WATCH_INTERVAL_S", _PAUSE_S / 4, raising=False)


async def pass_time(harness: Harness, seconds: float) -> None:
    for _ in range(int(seconds / _STEP_S)):
        harness.clock.now_s += _STEP_S
        await asyncio.sleep(_PAUSE_S)


async def expect_a_lost_device(harness: Harness) -> None:
    """Check that the scheduler has stopped because of a lost device."""
    async with asyncio.timeout(0.2):
        with pytest.raises(DeviceLost):
            await harness.scheduler.failed()


def outcomes(tasks: "list[asyncio.Task[Outcome]]") -> list[type]:
    """Return the type of each task's error, Outcome for an answer and Task for a task that still waits."""
    kinds: list[type] = []
    for task in tasks:
        result = (task.exception() or task.result()) if task.done() else task
        kinds.append(Unavailable if isinstance(result, Unavailable) else type(result))
        task.cancel()
    return kinds


async def test_the_callers_of_the_only_device_are_answered_and_the_scheduler_ends(harness: Harness) -> None:
    running = harness.submit([HANG])
    await asyncio.sleep(0.01)
    waiting = [harness.submit([value] * 8) for value in (2, 3)]
    await pass_time(harness, 24.0)
    assert not any(task.done() for task in (running, *waiting))
    await pass_time(harness, 40.0)
    assert outcomes([running, *waiting]) == [Unavailable, Unavailable, Unavailable]
    await expect_a_lost_device(harness)
    with pytest.raises(Unavailable):
        await harness.submit([5])


async def test_a_device_that_hangs_also_ends_what_other_devices_run() -> None:
    harness = Harness(devices=2)
    running = harness.submit([HANG])
    await asyncio.sleep(0.01)
    harness.devices[1].hold()
    other = harness.submit([2] * 8)
    await harness.devices[1].busy()
    await pass_time(harness, 60.0)
    assert outcomes([running, other]) == [Unavailable] * 2
    await expect_a_lost_device(harness)
    harness.device.resumed.set()
    harness.devices[1].release()
    await drain(harness.scheduler)


@pytest.mark.parametrize(("seconds", "hangs"), [(500.0, False), (700.0, True)])
async def test_a_batch_of_a_model_that_is_being_loaded_may_take_ten_minutes_then_the_load_and_all_callers_fail(
    seconds: float, hangs: bool, harness: Harness
) -> None:
    (worker,) = harness.scheduler.workers
    resumed = threading.Event()

    def run() -> float:
        resumed.wait(60)
        return 0.5

    loading = asyncio.create_task(asyncio.to_thread(worker.turn, asyncio.get_running_loop(), run))
    await asyncio.sleep(0.01)
    waiting = harness.submit([2])
    await pass_time(harness, seconds)
    if hangs:
        with pytest.raises(DeviceLost):
            await loading
        await expect_a_lost_device(harness)
        later = harness.submit([3])
        await asyncio.sleep(0.01)
        assert outcomes([waiting, later]) == [Unavailable] * 2
        resumed.set()
    else:
        assert not waiting.done()
        resumed.set()
        assert (await loading, sums(await waiting)) == (0.5, [2])


async def test_a_long_batch_may_take_20_times_its_predicted_time(harness: Harness) -> None:
    running = harness.submit([HANG] + [1] * 20)  # Predicted: 5.75 s.
    await pass_time(harness, 108.0)
    assert not running.done()
    harness.device.resumed.set()
    assert sums(await running) == [HANG + 20]


async def test_a_machine_that_was_suspended_is_no_hung_device(harness: Harness) -> None:
    running = harness.submit([HANG])
    await asyncio.sleep(0.01)
    for _ in range(3):
        harness.clock.now_s += 3600.0
        await asyncio.sleep(0.01)
    harness.device.resumed.set()
    assert sums(await running) == [HANG]


async def test_a_probe_that_hangs_is_given_up(harness: Harness) -> None:
    harness.device.hangs_on_probe = True
    failing = harness.submit([POISON])
    await pass_time(harness, 60.0)
    assert outcomes([failing]) == [Unavailable]
    await expect_a_lost_device(harness)


async def test_half_of_a_failed_batch_that_hangs_is_given_up(harness: Harness) -> None:
    def hang_alone(batch: PackedBatch, *, hidden: bool) -> GraphOutputs:
        if batch is not PROBE and batch.sequences == 1:
            harness.device.resumed.wait(60)
        return FakeDevice.run(harness.device, batch, hidden=hidden)

    with patch.object(harness.device, "run", hang_alone):
        failing = harness.submit([POISON], [2])
        await pass_time(harness, 60.0)
    assert outcomes([failing]) == [Unavailable]
    await expect_a_lost_device(harness)


async def test_packing_that_hangs_is_given_up(harness: Harness) -> None:
    resumed = threading.Event()

    def hang_on_three(sequences: Any) -> PackedBatch:
        if any(len(sequence) == 3 for sequence in sequences):
            resumed.wait(60)
        return pack(sequences)

    with patch.object(worker_module, "pack", hang_on_three):
        failing = harness.submit([1, 2, 3])
        await pass_time(harness, 60.0)
        resumed.set()
    assert outcomes([failing]) == [Unavailable]
    await expect_a_lost_device(harness)
