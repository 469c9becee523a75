"""A sequence that ran when a device died runs alone next time, and fails when a second device dies."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from headwaiter_proto.rules.errors import DeviceFailed, HeadwaiterError, InferenceFailed, Unavailable
from headwaiter_server.runtime.graph import Outputs
from headwaiter_server.runtime.packing import PackedBatch
from headwaiter_server.scheduling.cost import Shape
from headwaiter_server.scheduling.queued_request import Outcome
from tests.server.scheduling.fakes import COST, POISON, FakeDevice, Harness, ManualClock, one_model, sums

KILL = 555


class MortalDevice(FakeDevice):
    """A device that dies when it runs the id KILL."""

    def run(self, batch: PackedBatch, *, hidden: bool) -> Outputs:
        self.dead |= KILL in batch.rows
        return super().run(batch, hidden=hidden)


class Mortal:
    """A scheduler whose devices die on KILL and are reopened at once.

    Attributes:
        devices: all devices that were opened, the dead ones too.
    """

    def __init__(self, workers: int = 1) -> None:
        self.clock = ManualClock()
        self.devices: list[MortalDevice] = []
        self.available: list[bool] = []
        graphs = [self.open() for _ in range(workers)]
        self.scheduler, self.queue = one_model(graphs, self.open, on_available=self.available.append, clock=self.clock)

    def open(self) -> MortalDevice:
        self.devices.append(MortalDevice())
        return self.devices[-1]

    @property
    def deaths(self) -> int:
        return sum(device.dead for device in self.devices)

    @property
    def batches(self) -> list[list[list[int]]]:
        """The batches of all devices."""
        return [batch for device in self.devices for batch in device.batches]

    async def encode(self, *sequences: list[int], **options: Any) -> Outcome | HeadwaiterError:
        """Submit a request once a device is alive, and return its outcome or its error."""
        while not self.scheduler._devices.alive_count:  # noqa: ASYNC110 - a device opens in a thread
            await asyncio.sleep(0.001)
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
    await mortal.scheduler.drain(5.0)
    assert mortal.queue.queued_sequences == mortal.queue.queued_tokens == 0


async def test_the_second_death_fails_the_sequence_and_the_third_request_does_not_run(mortal: Mortal) -> None:
    requests = [[[KILL]], [[2]], [[3]]]
    assert kinds(await mortal.encode_together(*requests)) == [DeviceFailed] * 3
    killed, *innocent = await mortal.encode_together(*requests)
    # The innocent ran before the sequence that kills, or found the device dead.
    assert isinstance(killed, InferenceFailed)
    assert killed.sequence == 0
    assert set(kinds(innocent)) <= {Outcome, Unavailable}
    assert kinds(await mortal.encode_together([[2]], [[3]])) == [Outcome] * 2
    partial = await mortal.encode([4], [KILL], [5], failures={})
    assert isinstance(partial, Outcome)
    assert sums(partial) == [4, 5]
    assert {index: type(error) for index, error in partial.failures.items()} == {1: InferenceFailed}
    assert mortal.deaths == 2


async def test_suspects_run_alone_and_a_suspect_that_has_run_shares_batches_again(mortal: Mortal) -> None:
    await mortal.encode_together([[KILL]], [[2]], [[3]])
    assert kinds(await mortal.encode_together([[2]], [[4]], [[3]], [[5]])) == [Outcome] * 4
    later = mortal.batches[1:]
    assert [[2]] in later
    assert [[3]] in later
    del mortal.devices[-1].batches[:]
    await mortal.encode_together([[2]], [[4]], [[3]])
    assert [sorted(batch) for batch in mortal.devices[-1].batches] == [[[2], [3], [4]]]


async def test_batches_count_as_they_ran_not_as_they_were_planned(mortal: Mortal) -> None:
    requests = [[[KILL]], [[2]], [[3]]]
    await mortal.encode_together(*requests)
    await mortal.encode_together([[2]], [[4]], [[3]], [[5]])
    lengths = [[len(sequence) for sequence in batch] for batch in mortal.batches]
    assert len(lengths) > 3
    assert mortal.queue.used_s == sum(COST.seconds(*Shape.of(batch)) for batch in lengths)


async def test_after_an_hour_the_failed_sequences_are_not_looked_up_any_more(mortal: Mortal) -> None:
    await mortal.encode([KILL])
    mortal.clock.now_s += 3601.0
    with patch("headwaiter_server.scheduling.device_failures._hash") as hashed:
        assert isinstance(await mortal.encode([2]), Outcome)
    assert hashed.call_count == 0


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
    assert mortal.deaths == 1
    assert all(len(batch) == 1 for batch in mortal.batches)


async def test_a_partial_request_whose_sequence_kills_a_second_device_fails(mortal: Mortal) -> None:
    killed = await mortal.encode([2], [KILL], [3], device_failures=1, failures={})
    assert isinstance(killed, InferenceFailed)


async def test_a_suspect_whose_twin_kills_the_second_device_does_not_run() -> None:
    mortal = Mortal(workers=2)
    assert isinstance(await mortal.encode([KILL]), DeviceFailed)
    assert kinds(await mortal.encode_together([[KILL]], [[KILL]])) == [InferenceFailed] * 2
    assert isinstance(await mortal.encode([2]), Outcome)
    assert mortal.deaths == 2
    await mortal.scheduler.drain(5.0)


async def test_a_failure_is_forgotten_after_an_hour(mortal: Mortal) -> None:
    assert kinds([await mortal.encode([KILL]), await mortal.encode([KILL])]) == [DeviceFailed, InferenceFailed]
    mortal.clock.now_s += 3599.0
    assert isinstance(await mortal.encode([KILL]), InferenceFailed)
    mortal.clock.now_s += 2.0
    assert isinstance(await mortal.encode([KILL]), DeviceFailed)


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


async def test_a_sequence_of_a_batch_that_never_ran_is_no_suspect(harness: Harness) -> None:
    (held,) = await harness.submit_behind_held_batch()
    planned = harness.submit([2])
    harness.clock.now_s = 0.749
    await asyncio.sleep(0.01)
    assert len(harness.planned) == 1
    harness.device.dead = True
    harness.device.release()
    errors = await asyncio.gather(held, planned, return_exceptions=True)
    assert [type(error) for error in errors] == [DeviceFailed, Unavailable]


async def test_a_faulty_sequence_on_a_working_device_is_no_suspect(mortal: Mortal) -> None:
    assert isinstance(await mortal.encode([POISON]), InferenceFailed)
    assert kinds(await mortal.encode_together([[POISON]], [[2]])) == [InferenceFailed, Outcome]
    assert mortal.batches == [[[POISON]], [[POISON], [2]], [[POISON]], [[2]]]
