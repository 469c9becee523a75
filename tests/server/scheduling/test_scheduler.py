"""Every admitted request gets its own answer, in time and in batches as large as may be, whatever its neighbours do."""

import asyncio
from contextlib import suppress

import numpy as np
import pytest

from headwaiter_server.errors import DeadlineExceeded, InvalidInput, Overloaded
from headwaiter_server.scheduling.admission import QueueLimits
from headwaiter_server.scheduling.job import Priority
from headwaiter_server.scheduling.scheduler import Scheduler
from headwaiter_server.scheduling.worker import Worker
from tests.server.scheduling.stand_ins import COST, LIMITS, PROBE, QUEUE, Bench, Device, Log, halves, sums


async def test_a_request_is_split_over_batches_and_joined_in_the_order_it_was_sent(bench: Bench) -> None:
    sequences = [[5], [1, 2, 3], [9] * 20, [4, 4], [7, 7, 7], [2], [8] * 7]

    outcome = await bench.submit(*sequences, hidden=True)

    assert sums(outcome) == [sum(sequence) for sequence in sequences]
    assert halves(outcome) == [[value / 2 for value in sequence] for sequence in sequences]
    assert outcome.batches == len(bench.device.batches) > 1
    assert sorted(one for batch in bench.device.batches for one in batch) == sorted(sequences)
    assert bench.log.ran_tokens == [sum(map(len, batch)) for batch in bench.device.batches]


async def test_requests_that_wait_together_share_a_batch(bench: Bench) -> None:
    tasks = await bench.submit_behind([[1, 2]], [[3]], [[4], [5, 6]])
    bench.device.release()
    outcomes = await asyncio.gather(*tasks)
    assert [sums(outcome) for outcome in outcomes] == [[1], [3], [3], [4, 11]]
    assert [sorted(batch) for batch in bench.device.batches] == [[[1]], [[1, 2], [3], [4], [5, 6]]]


async def test_only_who_asked_for_hidden_rows_gets_them_from_a_shared_batch(bench: Bench) -> None:
    (ahead,) = await bench.submit_behind()
    with_rows, without = bench.submit([2, 4], hidden=True), bench.submit([6], hidden=False)
    await asyncio.sleep(0)
    bench.device.release()
    await ahead
    assert halves(await with_rows) == [[1.0, 2.0]]
    assert (await without).hidden is None
    assert len(bench.device.batches) == 2


async def test_a_model_without_pooling_answers_with_hidden_rows_alone(bench: Bench) -> None:
    bench.device.pools = False
    outcome = await bench.submit([2], [4, 6], hidden=True)
    assert outcome.pooled is None
    assert halves(outcome) == [[1.0], [2.0, 3.0]]


async def test_waiting_for_its_own_batches_is_no_time_in_the_queue(bench: Bench) -> None:
    bench.device.hold()
    task = bench.submit([1] * 8, [2] * 8)
    for _ in range(2):
        await bench.device.busy()
        bench.clock.now_s += 2.0
        bench.device.release(1)
    outcome = await task
    assert (outcome.assemble_s, outcome.compute_s, outcome.computed_s, outcome.batches) == (0.0, 4.0, 4.0, 2)


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

    # The one on the device takes 0.5 + 0.25 s, and the one that waits 0.5 + 60 × 0.25 s.
    assert refusal.value.retry_after_s == pytest.approx(0.75 + 15.5)
    assert refusal.value.limit == QUEUE.tokens
    bench.device.release()
    assert [sums(outcome) for outcome in await asyncio.gather(ahead, *waiting, fits)] == [[1], [60], [8]]


async def test_a_request_that_no_queue_could_hold_is_invalid_rather_than_refused_for_now(bench: Bench) -> None:
    with pytest.raises(InvalidInput, match="has 65 tokens, and the server queues 64 at most: split it") as error:
        await bench.submit([1] * 32, [1] * 33)
    assert (error.value.limit, error.value.actual) == (64, 65)


async def test_what_is_cancelled_before_its_turn_never_runs(bench: Bench) -> None:
    ahead, gone, stays = await bench.submit_behind([[2], [3]], [[4]])
    gone.cancel()
    bench.device.release()
    assert [sums(outcome) for outcome in await asyncio.gather(ahead, stays)] == [[1], [4]]
    assert gone.cancelled()
    assert bench.device.batches == [[[1]], [[4]]]
    assert bench.log.expired_sequences == 0


async def test_what_is_cancelled_at_the_very_moment_of_planning_is_planned_once_and_never_runs(bench: Bench) -> None:
    ahead, gone = await bench.submit_behind([[2]])
    await asyncio.sleep(0.01)
    bench.clock.now_s = 0.749
    bench.scheduler._plan_soon()  # planning comes first, and only then does the cancelled request hear of it
    gone.cancel()
    await asyncio.sleep(0.01)
    bench.device.release()
    assert sums(await ahead) == [1]
    assert gone.cancelled()
    assert bench.device.batches == [[[1]]]


async def test_a_batch_that_was_late_makes_nobody_expect_the_next_one_sooner_than_it_takes(bench: Bench) -> None:
    ahead, second = await bench.submit_behind([[2]])
    bench.clock.now_s = 0.749
    bench.scheduler._plan_soon()
    await asyncio.sleep(0.01)
    assert len(bench.ahead) == 1
    assert bench.scheduler.estimated_wait_s == pytest.approx(0.001 + 0.75)
    bench.clock.now_s = 10.0
    bench.device.release(1)
    bench.device.busy_now()
    # The event loop hears of it later than the device.
    bench.clock.now_s = 10.25
    await ahead

    third = bench.submit([3])
    await asyncio.sleep(0.01)

    # The second takes 0.5 + 0.25 s since then, and until then there may be better company for the third.
    assert bench.ahead == []
    bench.clock.now_s = 10.5
    assert bench.scheduler.estimated_wait_s == pytest.approx(0.25 + 0.75)
    bench.device.release()
    assert [sums(outcome) for outcome in await asyncio.gather(second, third)] == [[2], [3]]


async def test_behind_a_device_that_is_late_nobody_runs_who_would_just_be_too_late(bench: Bench) -> None:
    # Behind 0.75 s, it takes 0.75 s; 5 ms are for the reply.
    (ahead,) = await bench.submit_behind()
    doomed = bench.submit([2], deadline_s=1.9)
    await asyncio.sleep(0)
    bench.clock.now_s = 1.9 - 0.75 - 0.003
    bench.scheduler._plan_soon()
    with pytest.raises(DeadlineExceeded, match="came too near"):
        await doomed
    with pytest.raises(Overloaded, match=r"could take 0\.945 s, and the deadline is in 0\.800 s"):
        await bench.submit([2], deadline_s=bench.clock.now_s + 0.8)
    bench.device.release()
    assert sums(await ahead) == [1]
    assert bench.device.batches == [[[1]]]


async def test_what_is_cancelled_while_it_runs_does_not_disturb_its_neighbours(bench: Bench) -> None:
    ahead, gone, stays = await bench.submit_behind([[2], [3]], [[4]])
    bench.device.release(1)
    await asyncio.gather(ahead, bench.device.busy())
    gone.cancel()
    bench.device.release()
    assert sums(await stays) == [4]
    assert bench.device.batches == [[[1]], [[4], [2], [3]]]
    with pytest.raises(asyncio.CancelledError):
        await gone


async def test_what_expired_while_it_waited_is_dropped_unrun_and_counted(bench: Bench) -> None:
    (ahead,) = await bench.submit_behind()
    late, in_time = bench.submit([2], [3], deadline_s=5.0), bench.submit([4], deadline_s=90.0)
    await asyncio.sleep(0)
    bench.clock.now_s = 5.0
    bench.device.release()
    with pytest.raises(DeadlineExceeded, match="before the request's turn came"):
        await late
    assert [sums(outcome) for outcome in await asyncio.gather(ahead, in_time)] == [[1], [4]]
    assert bench.device.batches == [[[1]], [[4]]]
    assert bench.log.expired_sequences == 2


async def test_all_of_an_expired_request_is_dropped_and_counted_where_planning_meets_only_a_part(bench: Bench) -> None:
    (ahead,) = await bench.submit_behind()
    # The bulk work leads by its age, and meets the expired among its neighbours as far as the budget goes.
    oldest = bench.submit([3] * 3, priority=Priority.BULK)
    await asyncio.sleep(0)
    bench.clock.now_s = 18.0
    late, longer = bench.submit([2] * 4, [2] * 10, deadline_s=30.0), bench.submit([4] * 9)
    await asyncio.sleep(0)
    bench.clock.now_s = 40.0
    bench.device.release()
    with pytest.raises(DeadlineExceeded):
        await late
    assert [sums(outcome) for outcome in await asyncio.gather(ahead, oldest, longer)] == [[1], [9], [36]]
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


async def test_the_next_batch_is_handed_over_just_before_the_device_is_done(
    bench: Bench,
) -> None:
    (ahead,) = await bench.submit_behind()
    waiting = bench.submit([2])
    await asyncio.sleep(0.01)
    assert bench.ahead == []
    # The batch on the device is of 0.5 + 0.25 s.
    bench.clock.now_s = 0.749
    later = bench.submit([3])
    await asyncio.sleep(0.01)
    assert len(bench.ahead) == 2
    assert (bench.scheduler.queued_sequences, bench.scheduler.queued_tokens) == (2, 2)
    bench.device.release()
    assert [sums(outcome) for outcome in await asyncio.gather(ahead, waiting, later)] == [[1], [2], [3]]


async def test_what_is_cancelled_or_expires_behind_a_busy_device_never_runs(bench: Bench) -> None:
    (ahead,) = await bench.submit_behind()
    gone, late, stays = bench.submit([2]), bench.submit([3], deadline_s=3.0), bench.submit([4])
    bench.clock.now_s = 0.749
    await asyncio.sleep(0.01)
    assert len(bench.ahead) == 3
    gone.cancel()
    bench.clock.now_s = 3.0
    bench.device.release()
    assert [sums(outcome) for outcome in await asyncio.gather(ahead, stays)] == [[1], [4]]
    with pytest.raises(DeadlineExceeded):
        await late
    assert bench.device.batches == [[[1]], [[4]]]
    assert bench.log.expired_sequences == 1


async def test_two_devices_share_one_queue(bench: Bench) -> None:
    devices = [Device(), Device()]
    for device in devices:
        device.hold()
    workers = [Worker(device, Device, PROBE, bench.clock) for device in devices]
    scheduler = Scheduler(workers, COST, LIMITS, QUEUE, Log(), clock=bench.clock)
    tasks = [asyncio.create_task(scheduler.submit([np.full(8, value)], hidden=False)) for value in (2, 3)]
    for device in devices:
        await device.busy()
        device.release()
    assert [sums(outcome) for outcome in await asyncio.gather(*tasks)] == [[16], [24]]
    await scheduler.drain(30.0)


async def test_bulk_work_takes_what_interactive_work_leaves(bench: Bench) -> None:
    (ahead,) = await bench.submit_behind()
    bulk = bench.submit([2] * 5, [3] * 5, priority=Priority.BULK)
    interactive = bench.submit([4] * 3, [5] * 3)
    await asyncio.sleep(0)
    bench.device.release()
    await asyncio.gather(ahead, bulk, interactive)
    assert [sorted(batch) for batch in bench.device.batches] == [[[1]], [[4] * 3, [5] * 3], [[2] * 5], [[3] * 5]]


async def test_a_request_whose_deadline_the_queue_cannot_meet_is_refused_at_once_with_the_estimate(
    bench: Bench,
) -> None:
    tasks = await bench.submit_behind(*([[2] * 8] for _ in range(4)))
    # Each of the four takes 2.5 s, and is due ten times as long after it came.
    bench.clock.now_s = 24.0
    with pytest.raises(Overloaded, match=r"the deadline is in 10\.000 s: try again in 10\.00 s") as refusal:
        await bench.submit([3], deadline_s=34.0)
    # What is late on the device should be done in a millisecond.
    assert refusal.value.retry_after_s == pytest.approx(10.0 + 0.001)
    tasks.append(bench.submit([3], deadline_s=39.0))
    await asyncio.sleep(0)
    assert bench.scheduler.queued_sequences == 5
    bench.device.release()
    await asyncio.gather(*tasks)


async def test_a_server_that_was_slow_for_a_while_serves_deadlines_again(bench: Bench) -> None:
    bench.device.hold()
    for _ in range(20):
        slow = bench.submit([2])
        await bench.device.busy()
        bench.clock.now_s += 100.0
        bench.device.release(1)
        await slow
    bench.device.release()
    # Nobody can be in time, it thinks, until it has tried some times.
    for _ in range(20):
        with suppress(DeadlineExceeded):
            await bench.submit([3], deadline_s=bench.clock.now_s + 50.0)
    assert sums(await bench.submit([3], deadline_s=bench.clock.now_s + 50.0)) == [3]


async def test_a_request_that_would_wait_too_long_is_refused_without_a_deadline(bench: Bench) -> None:
    device, limits = Device(), QueueLimits(tokens=64, wait_s=3.0)
    device.hold()
    scheduler = Scheduler([Worker(device, Device, PROBE, bench.clock)], COST, LIMITS, limits, Log(), clock=bench.clock)
    tasks = [asyncio.create_task(scheduler.submit([np.full(8, value)], hidden=False)) for value in (2, 3)]
    await device.busy()
    with pytest.raises(Overloaded, match=r"would wait for 5\.00 s, and the server lets none wait for more than 3 s"):
        await scheduler.submit([np.full(8, 4)], hidden=False)
    device.release()
    await asyncio.gather(*tasks)
    await scheduler.drain(30.0)


async def test_urgent_work_is_not_refused_for_work_that_can_wait(bench: Bench) -> None:
    tasks = await bench.submit_behind(*([[2] * 8] for _ in range(4)))
    # Due before the others, whose patience lasts for 25 s.
    tasks.append(bench.submit([3], deadline_s=4.5))
    await asyncio.sleep(0)
    assert bench.scheduler.queued_sequences == 5
    bench.device.release()
    assert sums((await asyncio.gather(*tasks))[-1]) == [3]
    assert bench.device.batches[1] == [[3]]
