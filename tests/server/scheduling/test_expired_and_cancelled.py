"""Expired and cancelled sequences never run, and do not disturb the others."""

import asyncio

import pytest

from headwaiter_proto.rules.errors import DeadlineExceeded
from headwaiter_server.scheduling.fair_start import Priority
from headwaiter_server.scheduling.request_errors import is_late
from tests.support.server.fakes import Harness, sums


async def test_a_request_that_is_cancelled_while_a_batch_is_planned_is_planned_once_and_never_runs(
    harness: Harness,
) -> None:
    held, gone = await harness.submit_behind_held_batch([[2]])
    await asyncio.sleep(0.01)
    harness.clock.now_s = 0.749
    harness.scheduler._wake_up.set()  # The loop plans before the task of the cancelled request runs.
    gone.cancel()
    await asyncio.sleep(0.01)
    harness.device.release()
    assert sums(await held) == [1]
    assert gone.cancelled()
    assert harness.device.batches == [[[1]]]


async def test_a_sequence_that_a_late_batch_makes_too_late_never_runs(harness: Harness) -> None:
    # The batch on the device takes 0.75 s, and the next one 0.75 s; a reply takes 10 ms.
    (held,) = await harness.submit_behind_held_batch()
    too_late = harness.submit([2], deadline_s=1.9)
    await asyncio.sleep(0)
    harness.clock.now_s = 1.9 - 0.75 - 0.003
    harness.scheduler._wake_up.set()
    with pytest.raises(DeadlineExceeded, match="deadline"):
        await too_late
    # Alone it would take 0.75 s and 10 ms, so it is not told to try again.
    with pytest.raises(DeadlineExceeded, match=r"0\.700 s.*0\.760 s"):
        await harness.submit([2], deadline_s=harness.clock.now_s + 0.7)
    harness.device.release()
    assert sums(await held) == [1]
    assert harness.device.batches == [[[1]]]


async def test_cancelling_a_request_that_runs_does_not_disturb_its_batch(harness: Harness) -> None:
    held, gone, stays = await harness.submit_behind_held_batch([[2], [3]], [[4]])
    harness.device.release(1)
    await asyncio.gather(held, harness.device.busy())
    gone.cancel()
    harness.device.release()
    assert sums(await stays) == [4]
    assert harness.device.batches == [[[1]], [[4], [2], [3]]]
    with pytest.raises(asyncio.CancelledError):
        await gone


async def test_all_sequences_of_an_expired_request_are_dropped(harness: Harness) -> None:
    (held,) = await harness.submit_behind_held_batch()
    # The bulk request leads, because it is due first.
    oldest = harness.submit([3] * 3, priority=Priority.BULK)
    await asyncio.sleep(0)
    harness.clock.now_s = 18.0
    late, longer = harness.submit([2] * 4, [2] * 10, deadline_s=30.0), harness.submit([4] * 9)
    await asyncio.sleep(0)
    harness.clock.now_s = 40.0
    harness.device.release()
    with pytest.raises(DeadlineExceeded):
        await late
    assert [sums(outcome) for outcome in await asyncio.gather(held, oldest, longer)] == [[1], [9], [36]]
    assert harness.observer.expired_sequences == 2


@pytest.mark.parametrize(
    ("deadline_s", "now_s", "late"),
    [
        (float("inf"), 1e9, False),
        (5.0, 5.0, True),
        (5.0, 4.95, True),  # The caller's deadline passed, and its cancellation arrived first.
        (5.0, 4.8, False),
        (101.0, 100.3, True),  # gRPC has rounded 100.3 s.
        (101.0, 99.0, False),
        (0.05, 0.046, True),
        (0.05, 0.02, False),
        (-1.0, 0.0, True),
    ],
)
def test_a_request_that_its_caller_cancels_just_before_the_deadline_is_late(
    deadline_s: float, now_s: float, late: bool
) -> None:
    assert is_late(now_s, 0.0, deadline_s) == late


@pytest.mark.parametrize(("now_s", "expired"), [(1.0, 0), (4.95, 2), (5.0, 2)])
async def test_a_request_that_is_cancelled_at_its_deadline_or_just_before_counts_as_expired(
    harness: Harness, now_s: float, expired: int
) -> None:
    (held,) = await harness.submit_behind_held_batch()
    late = harness.submit([2], [3], deadline_s=5.0)
    await asyncio.sleep(0)
    harness.clock.now_s = now_s
    late.cancel()
    await asyncio.wait([late])
    assert harness.observer.expired_sequences == expired
    assert harness.queue.queued_sequences == 0
    harness.device.release()
    await held


async def test_sequences_of_a_planned_batch_that_are_cancelled_or_expire_never_run(harness: Harness) -> None:
    (held,) = await harness.submit_behind_held_batch()
    gone, late, stays = harness.submit([2]), harness.submit([3], [5], [6], deadline_s=3.0), harness.submit([4])
    harness.clock.now_s = 0.749
    await asyncio.sleep(0.01)
    assert len(harness.planned) == 5
    gone.cancel()
    harness.clock.now_s = 3.0
    harness.device.release()
    assert [sums(outcome) for outcome in await asyncio.gather(held, stays)] == [[1], [4]]
    with pytest.raises(DeadlineExceeded):
        await late
    assert harness.device.batches == [[[1]], [[4]]]
    assert harness.observer.expired_sequences == 3


async def test_a_request_that_arrives_after_its_deadline_is_never_queued(harness: Harness) -> None:
    with pytest.raises(DeadlineExceeded, match="deadline passed"):
        await harness.submit([2], [3], deadline_s=harness.clock.now_s)
    assert harness.observer.expired_sequences == 2
    assert harness.device.batches == []
