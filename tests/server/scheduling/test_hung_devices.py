"""A device that hangs ends the scheduler, and all callers are answered."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from headwaiter_proto.rules.errors import Unavailable
from headwaiter_server.runtime.errors import DeviceLost
from headwaiter_server.runtime.graph import Outputs
from headwaiter_server.runtime.packing import PackedBatch, pack
from headwaiter_server.scheduling import worker as worker_module
from headwaiter_server.scheduling.queued_request import Outcome
from tests.server.scheduling.fakes import POISON, PROBE, FakeDevice, ManualClock, one_model, sums

HANG = 999
# A fake second lasts this long; the clock advances by _STEP_S at once, and the watchdog looks at it in between.
_STEP_S, _PAUSE_S = 4.0, 0.002


class HangingDevice(FakeDevice):
    """Also hangs on the sequence [HANG], and on the probe if `hangs_on_probe`, until `resumed` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs_on_probe = False
        self.resumed = threading.Event()

    def run(self, batch: PackedBatch, *, hidden: bool) -> Outputs:
        if HANG in batch.rows or (self.hangs_on_probe and batch is PROBE):
            self.resumed.wait(60)
        return super().run(batch, hidden=hidden)


class Hanging:
    """A scheduler on devices that can hang, with a clock that the test moves."""

    def __init__(self, device_count: int) -> None:
        self.clock = ManualClock()
        self.devices = [HangingDevice() for _ in range(device_count)]
        self.scheduler, self.queue = one_model(self.devices, clock=self.clock)

    def submit(self, *sequences: list[int], **options: Any) -> "asyncio.Task[Outcome]":
        values = [np.array(sequence) for sequence in sequences]
        return asyncio.create_task(self.scheduler.submit(self.queue, values, **{"hidden": False, **options}))

    async def pass_time(self, seconds: float) -> None:
        for _ in range(int(seconds / _STEP_S)):
            self.clock.now_s += _STEP_S
            await asyncio.sleep(_PAUSE_S)

    async def failure(self) -> BaseException | None:
        """Return the error that stopped the scheduler, if it has stopped."""
        try:
            async with asyncio.timeout(0.2):
                await self.scheduler.failed()
        except TimeoutError:
            return None
        except DeviceLost as error:
            return error
        raise AssertionError


@pytest.fixture(autouse=True)
def _frequent_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwaiter_server.scheduling.worker._WATCH_INTERVAL_S", _PAUSE_S / 4, raising=False)


@pytest.fixture
async def hanging() -> AsyncIterator[Callable[..., Hanging]]:
    """Make a scheduler; end its devices' threads after the test."""
    made: list[Hanging] = []

    def make(*arguments: Any) -> Hanging:
        made.append(Hanging(*arguments))
        return made[-1]

    yield make
    for each in made:
        for device in each.devices:
            device.resumed.set()
        await each.scheduler.drain(5.0)


Make = Callable[..., Hanging]


def outcomes(tasks: "list[asyncio.Task[Outcome]]") -> list[type]:
    """Return the type of each task's error, Outcome for an answer and Task for a task that still waits."""
    kinds: list[type] = []
    for task in tasks:
        result = (task.exception() or task.result()) if task.done() else task
        kinds.append(Unavailable if isinstance(result, Unavailable) else type(result))
        task.cancel()
    return kinds


async def test_the_callers_of_the_only_device_are_answered_and_the_scheduler_ends(hanging: Make) -> None:
    harness = hanging(1)
    running = harness.submit([HANG])
    await asyncio.sleep(0.01)
    waiting = [harness.submit([value] * 8) for value in (2, 3)]
    await harness.pass_time(24.0)
    assert not any(task.done() for task in (running, *waiting))
    await harness.pass_time(40.0)
    assert outcomes([running, *waiting]) == [Unavailable, Unavailable, Unavailable]
    assert isinstance(await harness.failure(), DeviceLost)
    with pytest.raises(Unavailable):
        await harness.submit([5])


async def test_a_device_that_hangs_also_ends_what_other_devices_run(hanging: Make) -> None:
    harness = hanging(2)
    running = harness.submit([HANG])
    await asyncio.sleep(0.01)
    harness.devices[1].hold()
    other = harness.submit([2] * 8)
    await harness.devices[1].busy()
    await harness.pass_time(60.0)
    assert outcomes([running, other]) == [Unavailable] * 2
    assert isinstance(await harness.failure(), DeviceLost)
    harness.devices[1].release()


async def test_a_batch_of_a_model_that_is_being_loaded_may_take_ten_minutes(hanging: Make) -> None:
    harness = hanging(1)
    (worker,) = harness.scheduler.workers
    resumed, loop = threading.Event(), asyncio.get_running_loop()

    def run() -> float:
        resumed.wait(60)
        return 0.5

    loading = asyncio.create_task(asyncio.to_thread(worker.turn, loop, run))
    await asyncio.sleep(0.01)
    waiting = harness.submit([2])
    await harness.pass_time(500.0)
    assert not waiting.done()
    resumed.set()
    assert (await loading, sums(await waiting)) == (0.5, [2])


async def test_a_batch_that_hangs_while_a_model_is_loaded_fails_the_load_and_all_callers(hanging: Make) -> None:
    harness = hanging(1)
    (worker,) = harness.scheduler.workers
    resumed, loop = threading.Event(), asyncio.get_running_loop()

    def run() -> float:
        resumed.wait(60)
        return 0.5

    loading = asyncio.create_task(asyncio.to_thread(worker.turn, loop, run))
    await asyncio.sleep(0.01)
    waiting = harness.submit([2])
    await harness.pass_time(700.0)
    with pytest.raises(DeviceLost):
        await loading
    assert isinstance(await harness.failure(), DeviceLost)
    later = harness.submit([3])
    await asyncio.sleep(0.01)
    assert outcomes([waiting, later]) == [Unavailable] * 2
    resumed.set()


async def test_a_long_batch_may_take_20_times_its_predicted_time(hanging: Make) -> None:
    harness = hanging(1)
    running = harness.submit([HANG] + [1] * 20)  # Predicted: 5.75 s.
    await harness.pass_time(108.0)
    assert not running.done()
    harness.devices[0].resumed.set()
    assert sums(await running) == [HANG + 20]


async def test_a_machine_that_was_suspended_is_no_hung_device(hanging: Make) -> None:
    harness = hanging(1)
    running = harness.submit([HANG])
    await asyncio.sleep(0.01)
    for _ in range(3):
        harness.clock.now_s += 3600.0
        await asyncio.sleep(0.01)
    harness.devices[0].resumed.set()
    assert sums(await running) == [HANG]


async def test_a_probe_that_hangs_is_given_up(hanging: Make) -> None:
    harness = hanging(1)
    harness.devices[0].hangs_on_probe = True
    failing = harness.submit([POISON])
    await harness.pass_time(60.0)
    assert outcomes([failing]) == [Unavailable]
    assert isinstance(await harness.failure(), DeviceLost)


async def test_half_of_a_failed_batch_that_hangs_is_given_up(hanging: Make) -> None:
    harness = hanging(1)
    (device,) = harness.devices

    def hang_alone(batch: PackedBatch, *, hidden: bool) -> Outputs:
        if batch is not PROBE and batch.sequences == 1:
            device.resumed.wait(60)
        return FakeDevice.run(device, batch, hidden=hidden)

    with patch.object(device, "run", hang_alone):
        failing = harness.submit([POISON], [2])
        await harness.pass_time(60.0)
    assert outcomes([failing]) == [Unavailable]
    assert isinstance(await harness.failure(), DeviceLost)


async def test_packing_that_hangs_is_given_up(hanging: Make) -> None:
    harness = hanging(1)
    resumed = threading.Event()

    def hang_on_three(sequences: Any) -> PackedBatch:
        if any(len(sequence) == 3 for sequence in sequences):
            resumed.wait(60)
        return pack(sequences)

    with patch.object(worker_module, "pack", hang_on_three):
        failing = harness.submit([1, 2, 3])
        await harness.pass_time(60.0)
        resumed.set()
    assert outcomes([failing]) == [Unavailable]
    assert isinstance(await harness.failure(), DeviceLost)
