"""Each admitted request gets its own answer in time, and the latest batches are remembered without their contents."""

import asyncio
import math

import pytest

from headwaiter_proto.rules.errors import InvalidInput, Overloaded
from headwaiter_server.scheduling.cost import Shape
from headwaiter_server.scheduling.fair_start import Priority
from tests.support.server.fakes import QUEUE, Harness, halves, sums


async def test_a_request_is_split_over_batches_and_its_answers_keep_the_order_of_its_sequences(
    harness: Harness,
) -> None:
    sequences = [[5], [1, 2, 3], [9] * 20, [4, 4], [7, 7, 7], [2], [8] * 7]

    outcome = await harness.submit(*sequences, hidden=True)

    assert sums(outcome) == [sum(sequence) for sequence in sequences]
    assert halves(outcome) == [[value / 2 for value in sequence] for sequence in sequences]
    assert len(outcome.batches) == len(harness.device.batches) > 1
    assert sorted(sequence for batch in harness.device.batches for sequence in batch) == sorted(sequences)
    assert harness.observer.ran_tokens == [sum(map(len, batch)) for batch in harness.device.batches]


async def test_the_next_batch_is_prepared_while_a_batch_runs(harness: Harness) -> None:
    harness.device.hold()
    tasks = [harness.submit([1] * 8)]
    await harness.device.busy()
    harness.clock.now_s = 2.5  # The predicted end of the first batch.
    tasks.append(harness.submit([2] * 7))
    for _ in range(100):
        if len(harness.device.prepared_tokens) > 1:
            break
        await asyncio.sleep(0.01)
    assert harness.device.prepared_tokens == [8, 7]
    assert harness.device.batches == [[[1] * 8]]
    harness.device.release()
    assert [sums(outcome) for outcome in await asyncio.gather(*tasks)] == [[8], [14]]
    assert harness.device.prepared_tokens == [8, 7]


async def test_a_full_queue_refuses_a_request_and_says_when_to_try_again(harness: Harness) -> None:
    held, *waiting = await harness.submit_behind_held_batch([[1] * 60])
    assert (harness.queue.queued_sequences, harness.queue.queued_tokens) == (1, 60)

    with pytest.raises(Overloaded, match=r"60 of 64\b.*\b5\b") as refusal:
        await harness.submit([1] * 5)
    fits = harness.submit([2] * 4)

    # The batch on the device takes 0.5 + 0.25 s, and the waiting request takes 0.5 + 60 × 0.25 s.
    assert refusal.value.retry_after_s == pytest.approx(0.75 + 15.5)
    assert refusal.value.limit == QUEUE.tokens
    harness.device.release()
    assert [sums(outcome) for outcome in await asyncio.gather(held, *waiting, fits)] == [[1], [60], [8]]


async def test_a_request_larger_than_the_queue_is_invalid_input(harness: Harness) -> None:
    with pytest.raises(InvalidInput, match=r"65.*64") as error:
        await harness.submit([1] * 32, [1] * 33)
    assert (error.value.limit, error.value.actual) == (64, 65)


async def test_a_batch_is_planned_just_before_the_device_is_done_also_after_a_late_batch(harness: Harness) -> None:
    held, second = await harness.submit_behind_held_batch([[2]])
    await asyncio.sleep(0.01)
    assert harness.planned == []
    # The batch on the device takes 0.5 + 0.25 s; the next one is planned just before the device is done.
    harness.clock.now_s = 0.749
    harness.scheduler._wake_up.set()
    await asyncio.sleep(0.01)
    assert len(harness.planned) == 1
    assert (harness.queue.queued_sequences, harness.queue.queued_tokens) == (1, 1)
    assert harness.scheduler.estimated_wait_s(harness.queue) == pytest.approx(0.001 + 0.75)
    harness.clock.now_s = 10.0
    harness.device.release(1)
    harness.device.busy_now()
    # The event loop receives the result later than the device finished.
    harness.clock.now_s = 10.25
    await held

    third = harness.submit([3])
    await asyncio.sleep(0.01)

    # The second batch takes 0.5 + 0.25 s from the end of the first; until it is nearly done, the third is not planned.
    assert harness.planned == []
    harness.clock.now_s = 10.5
    # One slow batch changes the predicted seconds by at most 5 %.
    assert harness.scheduler.estimated_wait_s(harness.queue) == pytest.approx(0.25 + 0.75, rel=0.05)
    harness.device.release()
    assert [sums(outcome) for outcome in await asyncio.gather(second, third)] == [[2], [3]]


async def test_a_server_that_was_slow_for_a_while_accepts_deadlines_again(harness: Harness) -> None:
    harness.device.hold()
    for _ in range(20):
        slow = harness.submit([2])
        await harness.device.busy()
        harness.clock.now_s += 100.0
        harness.device.release(1)
        await slow
    harness.device.release()
    # The predicted times are too long for every deadline, but the device is idle.
    assert sums(await harness.submit([3], deadline_s=harness.clock.now_s + 50.0)) == [3]


async def test_calls_that_share_a_request_have_the_fair_starts_of_requests_of_their_own(harness: Harness) -> None:
    own_work_s, shared_s = (
        harness.scheduler.admit(harness.queue, Shape.of([2] * 8), math.inf, Priority.INTERACTIVE, calls)
        - harness.clock()
        for calls in (1, 8)
    )
    assert shared_s == pytest.approx(own_work_s / 8)


async def test_an_urgent_request_is_admitted_ahead_of_requests_that_can_wait(harness: Harness) -> None:
    tasks = await harness.submit_behind_held_batch(*([[2] * 8] for _ in range(4)))
    # The urgent request is due before the others, whose maximum wait is 25 s.
    tasks.append(harness.submit([3], deadline_s=4.5))
    await asyncio.sleep(0)
    assert harness.queue.queued_sequences == 5
    harness.device.release()
    assert sums((await asyncio.gather(*tasks))[-1]) == [3]
    assert harness.device.batches[1] == [[3]]


async def test_a_batch_is_remembered_with_the_lengths_and_the_requests_of_its_sequences(harness: Harness) -> None:
    tasks = await harness.submit_behind_held_batch([[1, 1], [2, 2]], [[3, 3, 3]])
    harness.clock.now_s = 4.0
    harness.device.release()
    await asyncio.gather(*tasks)
    held, batch = harness.queue.recent_batches
    assert list(held.lengths) == [1]
    by_request: dict[int, list[int]] = {}
    for length, number in zip(batch.lengths, batch.request_numbers, strict=True):
        by_request.setdefault(number, []).append(length)
    assert sorted(by_request.values()) == [[2, 2], [3]]
    assert not by_request.keys() & set(held.request_numbers)
    assert (batch.end_s, batch.measured_s) == (4.0, 0.0)
    # The costs of a launch and of 7 tokens, which one slow batch changes by at most 5 %.
    assert batch.predicted_s == pytest.approx(0.5 + 7 * 0.25, rel=0.05)


async def test_only_the_latest_64_batches_are_remembered(harness: Harness) -> None:
    for number in range(70):
        await harness.submit([number] * (1 + number % 7))
    assert [list(batch.lengths) for batch in harness.queue.recent_batches] == [[1 + n % 7] for n in range(6, 70)]
