"""A sequence that another device ran when the device died runs alone, and fails when a second device dies."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from headwaiter_proto.rules.errors import DeadlineExceeded, DeviceFailed, HeadwaiterError, InferenceFailed, Unavailable
from headwaiter_server.runtime.graph import Outputs
from headwaiter_server.runtime.packing import PackedBatch
from headwaiter_server.scheduling.cost import Shape
from headwaiter_server.scheduling.queued_request import Outcome
from tests.server.scheduling.fakes import COST, FakeDevice, Harness, ManualClock, drain, one_model

KILL = 555


class MortalDevice(FakeDevice):
    """A device that dies when it runs the id KILL."""

    def run(self, batch: PackedBatch, *, hidden: bool) -> Outputs:
        self.dead |= KILL in batch.rows
        return super().run(batch, hidden=hidden)


class Mortal:
    """A scheduler whose devices die on KILL."""

    def __init__(self, workers: int = 1) -> None:
        self.clock = ManualClock()
        self.devices = [MortalDevice() for _ in range(workers)]
        self.scheduler, self.queue = one_model(self.devices, clock=self.clock)

    @property
    def batches(self) -> list[list[list[int]]]:
        """The batches of all devices."""
        return [batch for device in self.devices for batch in device.batches]

    async def encode(self, *sequences: list[int], **options: Any) -> Outcome | HeadwaiterError:
        """Submit a request, and return its outcome or its error."""
        values = [np.array(sequence) for sequence in sequences]
        try:
            return await self.scheduler.submit(self.queue, values, **{"hidden": False, **options})
        except HeadwaiterError as error:
            return error

    async def encode_together(self, *requests: list[list[int]], **options: Any) -> list[Outcome | HeadwaiterError]:
        return await asyncio.gather(*(self.encode(*request, **options) for request in requests))


def kinds(answers: list[Outcome | HeadwaiterError]) -> list[type]:
    return [type(answer) for answer in answers]


@pytest.fixture
async def mortal() -> AsyncIterator[Mortal]:
    mortal = Mortal()
    yield mortal
    await drain(mortal.scheduler)
    if not any(device.dead for device in mortal.devices):
        assert mortal.queue.queued_sequences == mortal.queue.queued_tokens == 0


async def test_the_requests_of_a_batch_that_killed_a_device_may_run_on_another_replica(mortal: Mortal) -> None:
    assert kinds(await mortal.encode_together([[KILL]], [[2]], [[3]])) == [DeviceFailed] * 3


async def test_suspects_run_alone_and_the_other_sequences_share_a_batch(mortal: Mortal) -> None:
    suspects = [mortal.encode([value], device_failures=1) for value in (2, 3)]
    others = [mortal.encode([value]) for value in (4, 5, 6)]
    assert kinds(await asyncio.gather(*suspects, *others)) == [Outcome] * 5
    assert sorted(map(sorted, mortal.batches)) == [[[2]], [[3]], [[4], [5], [6]]]


async def test_batches_count_as_they_ran_not_as_they_were_planned(mortal: Mortal) -> None:
    device = mortal.devices[0]
    device.hold()
    held = asyncio.create_task(mortal.encode([1]))
    await device.busy()
    waiting = [mortal.encode([2], device_failures=1), mortal.encode([4]), mortal.encode([5])]
    tasks = [asyncio.create_task(each) for each in waiting]
    await asyncio.sleep(0)
    device.release()
    await asyncio.gather(held, *tasks)
    lengths = [[len(sequence) for sequence in batch] for batch in mortal.batches]
    assert sorted(lengths) == [[1], [1], [1, 1]]
    assert mortal.queue.used_s == sum(COST.seconds(*Shape.of(batch)) for batch in lengths)


@pytest.mark.parametrize("workers", [1, 2])
async def test_only_one_suspect_at_a_time_is_on_a_device(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    mortal = Mortal(workers)
    running: list[PackedBatch] = []
    most_running = 0

    def note_run(device: MortalDevice, batch: PackedBatch, *, hidden: bool) -> Outputs:
        nonlocal most_running
        running.append(batch)
        most_running = max(most_running, len(running))
        try:
            return FakeDevice.run(device, batch, hidden=hidden)
        finally:
            running.pop()

    monkeypatch.setattr(MortalDevice, "run", note_run)
    answers = await mortal.encode_together(*([[value]] for value in range(1, 9)), device_failures=1)
    assert kinds(answers) == [Outcome] * 8
    assert most_running == 1
    assert sorted(mortal.batches) == [[[value]] for value in range(1, 9)]
    await mortal.scheduler.drain(5.0)


async def test_a_failure_on_another_server_counts_as_the_first(mortal: Mortal) -> None:
    killed = await mortal.encode([2], [KILL], [3], device_failures=1)
    assert isinstance(killed, InferenceFailed)
    assert killed.sequence == 1
    assert all(len(batch) == 1 for batch in mortal.batches)


async def test_a_partial_request_whose_sequence_kills_a_second_device_fails(mortal: Mortal) -> None:
    killed = await mortal.encode([2], [KILL], [3], device_failures=1, failures={})
    assert isinstance(killed, InferenceFailed)


async def test_a_sequence_may_expire_while_a_suspect_runs(mortal: Mortal) -> None:
    device = mortal.devices[0]
    device.hold()
    suspect = asyncio.create_task(mortal.encode([1], device_failures=1))
    await device.busy()
    late = asyncio.create_task(mortal.encode([2], deadline_s=3.0))
    await asyncio.sleep(0)
    mortal.clock.now_s = 3.0
    mortal.scheduler._wake_up.set()
    assert isinstance(await late, DeadlineExceeded)
    device.release()
    assert isinstance(await suspect, Outcome)


async def test_a_suspect_that_was_cancelled_while_it_waited_does_not_run(mortal: Mortal) -> None:
    device = mortal.devices[0]
    device.hold()
    first = asyncio.create_task(mortal.encode([1], device_failures=1))
    await device.busy()
    second = asyncio.create_task(mortal.encode([2], device_failures=1))
    await asyncio.sleep(0.01)
    second.cancel()
    await asyncio.sleep(0)
    device.release()
    assert isinstance(await first, Outcome)
    assert isinstance(await mortal.encode([3], device_failures=1), Outcome)
    assert mortal.batches == [[[1]], [[3]]]


async def test_a_sequence_of_a_batch_that_never_ran_did_not_kill_the_device(harness: Harness) -> None:
    (held,) = await harness.submit_behind_held_batch()
    planned = harness.submit([2])
    harness.clock.now_s = 0.749
    await asyncio.sleep(0.01)
    assert len(harness.planned) == 1
    harness.device.dead = True
    harness.device.release()
    errors = await asyncio.gather(held, planned, return_exceptions=True)
    assert [type(error) for error in errors] == [DeviceFailed, Unavailable]
