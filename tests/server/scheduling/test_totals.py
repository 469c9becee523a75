"""What the queues keep as work comes and goes equals a recount of all sequences."""

from itertools import product

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headwaiter_proto.rules.errors import HeadwaiterError
from headwaiter_server.scheduling.fair_start import Priority, fair_start_s
from headwaiter_server.scheduling.job import Job, Outcome
from headwaiter_server.scheduling.model_queue import ModelQueue
from headwaiter_server.scheduling.model_queues import ModelQueues
from headwaiter_server.scheduling.queued_request import QueuedRequest, Sequence
from headwaiter_server.scheduling.worker import Session, Worker
from tests.support.server.fakes import COST, LIMITS, PROBE, FakeDevice, FakeObserver, ManualClock
from tests.support.server.sequences import waiting_in

WORKERS = [Worker(ManualClock()) for _ in range(2)]
models = st.integers(0, 2)
times_s = st.integers(0, 40).map(float)


class Caller:
    """Waits for an answer that never comes, until it goes."""

    def __init__(self) -> None:
        self.gone = False

    def done(self) -> bool:
        return self.gone

    def set_result(self, result: Outcome, /) -> None:
        raise AssertionError

    def set_exception(self, exception: HeadwaiterError, /) -> None:
        raise AssertionError


class Totals(RuleBasedStateMachine):
    """Queue, plan, start and withdraw requests of three models at random; one model runs on one of two workers only."""

    def __init__(self) -> None:
        super().__init__()
        self.queues = ModelQueues()
        for workers in (WORKERS, WORKERS, WORKERS[1:]):
            self.append(workers)
        self.requests: list[tuple[QueuedRequest, list[Sequence]]] = []
        self.planned: list[Sequence] = []

    def append(self, workers: list[Worker]) -> None:
        sessions = {worker: Session(FakeDevice(), PROBE) for worker in workers}
        self.queues.append(ModelQueue(sessions, COST, LIMITS, FakeObserver()))

    @rule(
        model=models,
        lengths=st.lists(st.integers(1, 9), min_size=1, max_size=3),
        arrived_s=times_s,
        priority=st.sampled_from(Priority),
    )
    def queue_request(self, model: int, lengths: list[int], arrived_s: float, priority: Priority) -> None:
        queue = self.queues[model]
        job = Job([np.zeros(length, np.int64) for length in lengths])
        request = QueuedRequest(queue, job, Caller())
        start_s = fair_start_s(arrived_s, float("inf"), priority, 0.1 * sum(lengths))
        sequences = [
            Sequence(values, len(values), start_s, float("inf"), priority, request, index)
            for index, values in enumerate(job.values)
        ]
        self.queues.note_arrival(queue)
        queue.add(request, sequences)
        self.requests.append((request, sequences))

    @rule(worker=st.sampled_from(WORKERS), count=st.integers(1, 4), now_s=times_s)
    def plan_batch(self, worker: Worker, count: int, now_s: float) -> None:
        if self.queues.want(worker):
            queue = self.queues.next(worker, now_s)
            batch = tuple(waiting_in(queue.pending)[:count])
            for sequence in batch:
                queue.pending.discard(sequence)
            self.queues.note_start(queue, now_s)
            queue.start_batch(0.5 * count)
            self.planned += batch

    @rule()
    def start_planned(self) -> None:
        for sequence in self.planned:
            sequence.request.note_started(sequence)
        self.planned.clear()

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        request, _ = self.requests.pop(data.draw(st.integers(0, len(self.requests) - 1)))
        assert isinstance(request.answer, Caller)
        assert isinstance(request.queue, ModelQueue)
        request.answer.gone = True
        request.queue.end_request(request)

    @rule(factor=st.floats(0.5, 2.0), model=models)
    def learn_cost(self, model: int, factor: float) -> None:
        queue = self.queues[model]
        queue.learnt.cost = COST.scaled(factor)
        queue.end_batch()

    @rule()
    def remove_first_model_if_idle(self) -> None:
        queue = self.queues[0]
        if not queue.queued_sequences and not queue.pending:
            self.queues.remove(queue)
            self.append(list(queue.sessions))

    @invariant()
    def queued_sequences_and_tokens_are_those_that_have_not_started(self) -> None:
        for queue in self.queues:
            queued = [
                sequence
                for request, sequences in self.requests
                for sequence in sequences
                if request.queue is queue and sequence.is_queued
            ]
            assert queue.queued_sequences == len(queued)
            assert queue.queued_tokens == sum(sequence.length_tokens for sequence in queued)
            in_pending = [sequence for sequence in queued if sequence in queue.pending]
            assert queue.pending.tokens == sum(sequence.length_tokens for sequence in in_pending)
            outside = [sequence for sequence in queued if sequence not in in_pending]
            assert all(each in self.planned for each in outside)

    @invariant()
    def the_waiting_queues_and_the_workers_that_they_want_are_right(self) -> None:
        waiting = [queue for queue in self.queues if queue.pending]
        assert list(self.queues.waiting) == waiting
        for worker in WORKERS:
            assert self.queues.want(worker) == any(worker in queue.sessions for queue in waiting)

    @invariant()
    def the_next_model_is_the_first_of_all_that_wait(self) -> None:
        for worker, now_s in product(filter(self.queues.want, WORKERS), (0.0, 15.0, 30.0, 60.0)):

            def order(queue: ModelQueue, now_s: float = now_s) -> tuple[bool, float, float]:
                leader = queue.pending.leader
                assert leader is not None
                yields = leader.priority is Priority.BULK and leader.fair_start_s > now_s
                return yields, queue.used_s, leader.fair_start_s

            waiting = [queue for queue in self.queues if queue.pending and worker in queue.sessions]
            assert self.queues.next(worker, now_s) is min(waiting, key=order)

    @rule(model=models, own_s=st.floats(0, 20), fair_start=times_s)
    def the_work_of_other_models_is_bounded_before_it_is_added_up(
        self, model: int, own_s: float, fair_start: float
    ) -> None:
        queue = self.queues[model]
        others = [other.backlog() for other in self.queues if other is not queue]
        *bounds, exact = self.queues.others_s(queue, own_s, fair_start)
        assert exact == pytest.approx(sum(min(own_s, other.ahead_s(fair_start)) for other in others))
        assert bounds == pytest.approx([2 * own_s])
        assert bounds[-1] >= exact - 1e-9


TestTotals = Totals.TestCase
TestTotals.settings = settings(max_examples=50, stateful_step_count=30)
