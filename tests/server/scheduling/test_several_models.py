"""Several models share one pool of devices: in fair shares, each with its own queue, and until they are removed."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwaiter_proto.rules.errors import DeviceFailed, Overloaded, Unavailable
from headwaiter_server.concurrency.worker_thread import NeverRan
from headwaiter_server.runtime.graph import GraphOutputs
from headwaiter_server.runtime.packing import PackedBatch
from headwaiter_server.scheduling.fair_start import Priority
from headwaiter_server.scheduling.job import Job, Outcome
from headwaiter_server.scheduling.model_queue import ModelQueue
from headwaiter_server.scheduling.model_queues import ModelQueues
from headwaiter_server.scheduling.scheduler import Scheduler
from headwaiter_server.scheduling.worker import Session, Worker
from tests.support.server.fakes import COST, LIMITS, PROBE, QUEUE, FakeDevice, FakeObserver, ManualClock, drain, sums
from tests.support.server.sequences import waiting

FULL = LIMITS.tokens


class LoggedDevice(FakeDevice):
    """A fake device that adds the name of its model to a log for each batch."""

    def __init__(self, name: str, log: list[str]) -> None:
        super().__init__()
        self._name, self._log = name, log

    def run(self, batch: PackedBatch, *, hidden: bool) -> GraphOutputs:
        if batch is not PROBE:
            self._log.append(self._name)
        return super().run(batch, hidden=hidden)


class TwoModels:
    """A scheduler with one worker and the models "a" and "b".

    Attributes:
        log: the model of each batch, in order.
    """

    def __init__(self) -> None:
        self.clock, self.log = ManualClock(), list[str]()
        self.devices = {name: LoggedDevice(name, self.log) for name in "ab"}
        self.worker = Worker(self.clock)
        self.scheduler = Scheduler([self.worker], QUEUE, clock=self.clock)
        self.queues = {name: self.add(name) for name in "ab"}

    def add(self, name: str) -> ModelQueue:
        session = Session(self.devices[name], PROBE)
        return self.scheduler.add_model({self.worker: session}, COST, LIMITS, FakeObserver())

    def submit(self, name: str, tokens: int, **options: Any) -> "asyncio.Task[Outcome]":
        job = Job([np.full(tokens, 2)], **options)
        return asyncio.create_task(self.scheduler.submit(self.queues[name], job))

    async def hold(self, name: str) -> "asyncio.Task[Outcome]":
        """Let a full batch of a model begin, and hold the batch on the device."""
        self.devices[name].hold()
        task = self.submit(name, FULL)
        await self.devices[name].busy()
        return task


@pytest.fixture
async def models() -> AsyncIterator[TwoModels]:
    models = TwoModels()
    yield models
    for device in models.devices.values():
        device.release()
    await drain(models.scheduler)


async def test_a_batch_holds_sequences_of_one_model(models: TwoModels) -> None:
    held = await models.hold("a")
    tasks = [models.submit(name, 2) for name in "abab"]
    await asyncio.sleep(0)
    models.devices["a"].release()
    assert [sums(outcome) for outcome in await asyncio.gather(held, *tasks)] == [[16], [4], [4], [4], [4]]
    assert sorted(models.log) == ["a", "a", "b"]


async def test_a_model_with_much_work_delays_another_model_by_one_batch(models: TwoModels) -> None:
    held = await models.hold("a")
    flood = [models.submit("a", FULL) for _ in range(6)]
    await asyncio.sleep(0)
    quiet = models.submit("b", 1)
    await asyncio.sleep(0)
    models.devices["a"].release()
    await asyncio.gather(held, *flood, quiet)
    assert models.log.index("b") <= 2  # Behind the batch that ran, and the batch that was planned before.


async def test_the_queue_of_one_model_may_be_full_while_another_has_room(models: TwoModels) -> None:
    held = await models.hold("a")
    flood = [models.submit("a", FULL) for _ in range(QUEUE.tokens // FULL)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await models.submit("a", 1)
    quiet = models.submit("b", 1)
    models.devices["a"].release()
    assert sums(await quiet) == [2]
    await asyncio.gather(held, *flood)


async def test_bulk_work_of_another_model_does_not_refuse_a_request_that_runs_before_it(models: TwoModels) -> None:
    held = await models.hold("a")
    waiting = [models.submit("a", FULL), models.submit("b", 1, priority=Priority.BULK)]
    await asyncio.sleep(0)
    # The batch on the device is late, and expected to end within a millisecond. Ahead of the request are 2.5 s of its
    # own model; it takes 0.75 s, and 0.01 s for the reply. The bulk work would take 0.75 s.
    models.clock.now_s = 8.0
    with pytest.raises(Overloaded, match=r"3\.261 s.*3\.200 s"):
        await models.submit("a", 1, deadline_s=11.2)
    admitted = models.submit("a", 1, deadline_s=11.5)
    await asyncio.sleep(0)
    models.devices["a"].release()
    await asyncio.gather(held, *waiting, admitted)


async def test_a_removed_model_answers_what_it_admitted_and_frees_its_session(models: TwoModels) -> None:
    held = await models.hold("a")
    behind = models.submit("a", 1)
    await asyncio.sleep(0)
    removing = asyncio.create_task(models.scheduler.remove_model(models.queues["a"]))
    await asyncio.sleep(0)
    with pytest.raises(Unavailable):
        await models.submit("a", 1)
    assert not removing.done()
    models.devices["a"].release()
    assert [sums(await held), sums(await behind)] == [[16], [2]]
    await removing
    assert not any(hasattr(session, "graph") for session in models.queues["a"].sessions.values())
    assert sums(await models.submit("b", 1)) == [2]


async def test_when_a_device_dies_the_requests_of_all_models_are_answered(models: TwoModels) -> None:
    held = await models.hold("a")
    waiting = models.submit("b", 1)
    await asyncio.sleep(0)
    models.devices["a"].dead = models.devices["b"].dead = True
    models.devices["a"].release()
    errors = await asyncio.gather(held, waiting, return_exceptions=True)
    assert [type(error) for error in errors] == [DeviceFailed, Unavailable]


async def test_no_batch_runs_during_the_turn_of_a_model_that_is_being_loaded(models: TwoModels) -> None:
    begun, ended = threading.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def run() -> float:
        begun.set()
        assert ended.wait(30)
        return 0.5

    loading = asyncio.create_task(asyncio.to_thread(models.worker.turn, loop, run))
    assert await asyncio.to_thread(begun.wait, 30)
    task = models.submit("a", 1)
    await asyncio.sleep(0.02)
    assert models.log == []
    ended.set()
    assert sums(await task) == [2]
    assert await loading == 0.5


async def test_an_error_in_a_turn_reaches_the_load(models: TwoModels) -> None:
    def run() -> float:
        raise MemoryError

    with pytest.raises(MemoryError):
        await asyncio.to_thread(models.worker.turn, asyncio.get_running_loop(), run)
    assert sums(await models.submit("a", 1)) == [2]


async def test_a_turn_after_the_drain_fails(models: TwoModels) -> None:
    models.worker.close()
    with pytest.raises(NeverRan):
        await asyncio.to_thread(models.worker.turn, asyncio.get_running_loop(), lambda: 0.0)


WORKER = Worker(ManualClock())


def add_queue(queues: ModelQueues, priority: Priority = Priority.INTERACTIVE) -> ModelQueue:
    """Add a queue with a waiting sequence."""
    queue = ModelQueue({WORKER: Session(FakeDevice(), PROBE)}, COST, LIMITS, FakeObserver())
    queue.pending.add(waiting(1, 0, own_work_s=0.0, priority=priority))
    queues.append(queue)
    return queue


def test_bulk_work_gets_no_credit_for_the_time_in_which_it_yields() -> None:
    queues = ModelQueues()
    busy, bulk = add_queue(queues), add_queue(queues, Priority.BULK)
    busy.used_s = 50.0
    queues.note_start(busy, 0.0)
    assert bulk.used_s == 50.0


@given(st.lists(st.floats(0.01, 1.0), min_size=2, max_size=5), st.integers(10, 100))
def test_models_with_much_work_get_equal_device_time(batch_s: list[float], batches: int) -> None:
    queues = ModelQueues()
    models = [add_queue(queues) for _ in batch_s]
    for _ in range(batches):
        chosen = queues.next(WORKER, 0.0)
        assert chosen is not None
        queues.note_start(chosen, 0.0)
        chosen.used_s += batch_s[models.index(chosen)]
    used_s = [queue.used_s for queue in models]
    assert max(used_s) - min(used_s) <= max(batch_s) + 1e-9
