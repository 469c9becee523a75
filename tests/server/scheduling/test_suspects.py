"""A sequence that another device ran when the device died runs alone, and fails when a second device dies."""

import asyncio
from typing import Any

import pytest

from headwaiter_proto.rules.errors import DeadlineExceeded, DeviceFailed, InferenceFailed, Unavailable
from headwaiter_server.runtime.graph import GraphOutputs
from headwaiter_server.runtime.packing import PackedBatch
from headwaiter_server.scheduling.cost import Shape
from headwaiter_server.scheduling.job import Outcome
from tests.support.server.fakes import COST, KILL, FakeDevice, Harness


async def kinds(*requests: asyncio.Task[Outcome]) -> list[type]:
    """Return the type of the outcome or of the error of each request."""
    return [type(answer) for answer in await asyncio.gather(*requests, return_exceptions=True)]


async def test_the_requests_of_a_batch_that_killed_a_device_may_run_on_another_replica(harness: Harness) -> None:
    assert await kinds(*(harness.submit([value]) for value in (KILL, 2, 3))) == [DeviceFailed] * 3


@pytest.mark.parametrize("suspect_comes_first", [True, False])
async def test_a_suspect_runs_alone_whether_it_leads_its_batch_or_not(
    suspect_comes_first: bool, harness: Harness
) -> None:
    tasks = await harness.submit_behind_held_batch()
    requests = [([2], 1), ([4], 0), ([5], 0)]
    for values, device_failures in requests if suspect_comes_first else reversed(requests):
        tasks.append(harness.submit(values, device_failures=device_failures))
        await asyncio.sleep(0)
        harness.clock.now_s += 1.0
    harness.device.release()
    assert await kinds(*tasks) == [Outcome] * 4
    assert [batch for batch in harness.batches if [2] in batch] == [[[2]]]


async def test_batches_count_as_they_ran_not_as_they_were_planned(harness: Harness) -> None:
    (held,) = await harness.submit_behind_held_batch()
    tasks = [harness.submit([2], device_failures=1), harness.submit([4]), harness.submit([5])]
    await asyncio.sleep(0)
    harness.device.release()
    await asyncio.gather(held, *tasks)
    lengths = [[len(sequence) for sequence in batch] for batch in harness.batches]
    assert sorted(lengths) == [[1], [1], [1, 1]]
    assert harness.queue.used_s == sum(COST.seconds(*Shape.of(batch)) for batch in lengths)


@pytest.mark.parametrize("workers", [1, 2])
async def test_only_one_suspect_at_a_time_is_on_a_device(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness(devices=workers)
    run, running = FakeDevice.run, list[PackedBatch]()
    most_running = 0

    def note_run(device: FakeDevice, batch: PackedBatch, *, hidden: bool) -> GraphOutputs:
        nonlocal most_running
        running.append(batch)
        most_running = max(most_running, len(running))
        try:
            return run(device, batch, hidden=hidden)
        finally:
            running.pop()

    monkeypatch.setattr(FakeDevice, "run", note_run)
    requests = [harness.submit([value], device_failures=1) for value in range(1, 9)]
    assert await kinds(*requests) == [Outcome] * 8
    assert most_running == 1
    assert sorted(harness.batches) == [[[value]] for value in range(1, 9)]
    await harness.scheduler.drain(5.0)


@pytest.mark.parametrize("options", [{}, {"failures": {}}], ids=["whole", "partial"])
async def test_a_failure_on_another_server_counts_as_the_first(options: dict[str, Any], harness: Harness) -> None:
    with pytest.raises(InferenceFailed) as killed:
        await harness.submit([2], [KILL], [3], device_failures=1, **options)
    assert killed.value.sequence == 1
    assert all(len(batch) == 1 for batch in harness.batches)


async def test_a_sequence_may_expire_while_a_suspect_runs(harness: Harness) -> None:
    harness.device.hold()
    suspect = harness.submit([1], device_failures=1)
    await harness.device.busy()
    late = harness.submit([2], deadline_s=3.0)
    await asyncio.sleep(0)
    harness.clock.now_s = 3.0
    harness.scheduler._wake_up.set()
    with pytest.raises(DeadlineExceeded):
        await late
    harness.device.release()
    await suspect


async def test_a_suspect_that_was_cancelled_while_it_waited_does_not_run(harness: Harness) -> None:
    harness.device.hold()
    first = harness.submit([1], device_failures=1)
    await harness.device.busy()
    second = harness.submit([2], device_failures=1)
    await asyncio.sleep(0.01)
    second.cancel()
    await asyncio.sleep(0)
    harness.device.release()
    await first
    await harness.submit([3], device_failures=1)
    assert harness.batches == [[[1]], [[3]]]


async def test_a_sequence_of_a_batch_that_never_ran_did_not_kill_the_device(harness: Harness) -> None:
    (held,) = await harness.submit_behind_held_batch()
    planned = harness.submit([2])
    harness.clock.now_s = 0.749
    await asyncio.sleep(0.01)
    assert len(harness.planned) == 1
    harness.device.dead = True
    harness.device.release()
    assert await kinds(held, planned) == [DeviceFailed, Unavailable]
