"""Owns the queue: one task plans a batch, runs it on the device, hands out the answers, and plans the next."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headwaiter_server.batching.cost import BatchLimits, CostModel, Pace
from headwaiter_server.batching.job import Job, Outcome, Sequence, Stamps
from headwaiter_server.batching.pending import Pending
from headwaiter_server.batching.planner import plan
from headwaiter_server.errors import (
    DeadlineExceeded,
    HeadwaiterError,
    InferenceFailed,
    InvalidInput,
    Overloaded,
    Unavailable,
)
from headwaiter_server.runtime.graph import Outputs
from headwaiter_server.runtime.packing import PackedBatch, pack


class Device(Protocol):
    """What runs a batch; called from a thread of its own, one batch at a time."""

    def run(self, batch: PackedBatch, *, hidden: bool) -> Outputs:
        """Run a packed batch."""
        ...


class Observer(Protocol):
    """Hears of what happens to batches."""

    def batch_ran(self, batch: PackedBatch, predicted_s: float, actual_s: float) -> None:
        """A batch has run, and took so long where so much was expected."""

    def expired(self, sequences: int) -> None:
        """Sequences were dropped, their deadline past."""


@dataclass(frozen=True, eq=False)
class _Run:
    """What the device's thread brings back."""

    batch: PackedBatch
    outputs: Outputs
    stamps: Stamps


class Scheduler:
    """Queues sequences and runs them in packed batches.

    The device is given its next batch as soon as one is done and something waits. Expired and cancelled sequences
    never run. A batch that fails is halved and tried again, so that a sequence the model fails on fails alone.
    """

    def __init__(
        self,
        device: Device,
        cost: CostModel,
        limits: BatchLimits,
        max_queue_tokens: int,
        observer: Observer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start serving; needs a running event loop."""
        self._device = device
        self._cost = cost
        self._limits = limits
        self._max_queue_tokens = max_queue_tokens
        self._observer = observer
        self._clock = clock
        self._pending = Pending()
        self._order = count()
        self._pace = Pace()
        self._jobs: set[Job] = set()
        self._work = asyncio.Event()
        self._draining = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="device")
        self._task = asyncio.create_task(self._serve())

    @property
    def queued_sequences(self) -> int:
        """How many sequences wait."""
        return len(self._pending)

    @property
    def queued_tokens(self) -> int:
        """How many tokens wait."""
        return self._pending.tokens

    @property
    def estimated_wait_s(self) -> float:
        """When a sequence that came now would start, by the pace of the latest batches."""
        batches = self._pending.tokens / self._limits.tokens
        return batches * self._cost.seconds(1, self._limits.tokens, 1, 1) * self._pace.factor

    async def submit(
        self, values: list[NDArray[np.generic]], *, hidden: bool, deadline_s: float = float("inf")
    ) -> Outcome:
        """Queue the sequences of a request, and return when the last has its answer.

        Cancelling the call withdraws what has not run yet.

        Args:
            values: token ids [n] or features [n, d_in] of each sequence.
            hidden: return hidden rows too.
            deadline_s: on the scheduler's clock.

        Raises:
            Overloaded: the queue has no room for it.
            Unavailable: the server is draining.
            DeadlineExceeded: the deadline passed while it waited.
            InferenceFailed: the model failed on one of the sequences.
        """
        self._admit(sum(len(sequence) for sequence in values))
        job = Job(len(values), hidden, asyncio.get_running_loop().create_future())
        arrived_s = self._clock()
        for index, sequence in enumerate(values):
            waiting = Sequence(sequence, len(sequence), next(self._order), arrived_s, deadline_s, job, index)
            self._pending.add(waiting)
            job.waiting.add(waiting)
        self._jobs.add(job)
        self._work.set()
        try:
            return await job.answer
        except asyncio.CancelledError:
            if self._clock() >= deadline_s and job.waiting:
                self._observer.expired(len(job.waiting))
            raise
        finally:
            self._jobs.discard(job)
            self._withdraw(job)

    async def failed(self) -> None:
        """Return only by raising what stopped the scheduler, should its task ever fail."""
        await asyncio.shield(self._task)

    async def drain(self, timeout_s: float) -> int:
        """Refuse new work, answer what was admitted, and stop.

        Returns:
            How many requests had no answer in time: they are told Unavailable, and the device may still be busy.
        """
        self._draining = True
        self._work.set()
        await asyncio.wait({self._task}, timeout=timeout_s)
        given_up = [job for job in self._jobs if not job.answer.done()]
        for job in given_up:
            self._give_up(job, Unavailable("the server shut down before it came to the request: try another replica"))
        self._task.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)
        return len(given_up)

    def _admit(self, tokens: int) -> None:
        if self._draining:
            raise Unavailable("the server is shutting down: send the request to another replica")
        if tokens > self._max_queue_tokens:
            raise InvalidInput(
                f"the request has {tokens} tokens, and the server queues {self._max_queue_tokens} at most: split it",
                limit=self._max_queue_tokens,
                actual=tokens,
            )
        if self._pending.tokens + tokens > self._max_queue_tokens:
            raise Overloaded(
                f"the queue holds {self._pending.tokens} of {self._max_queue_tokens} tokens and the request has "
                f"{tokens}: try again in {self.estimated_wait_s:.2f} s",
                retry_after_s=self.estimated_wait_s,
                limit=self._max_queue_tokens,
            )

    async def _serve(self) -> None:
        while self._pending or not self._draining:
            if not self._pending:
                self._work.clear()
                await self._work.wait()
                continue
            chosen = plan(self._pending, self._clock(), self._cost, self._limits)
            for job in dict.fromkeys(sequence.job for sequence in chosen.expired):
                self._observer.expired(len(job.waiting))
                self._give_up(job, DeadlineExceeded("the deadline passed before the request's turn came"))
            for sequence in chosen.batch:
                self._pending.remove(sequence)
                sequence.job.waiting.remove(sequence)
            await self._run(chosen.batch)

    def _give_up(self, job: Job, error: HeadwaiterError) -> None:
        job.fail(error)
        self._withdraw(job)

    def _withdraw(self, job: Job) -> None:
        for sequence in job.waiting:
            self._pending.remove(sequence)
        job.waiting.clear()

    async def _run(self, batch: tuple[Sequence, ...]) -> None:
        # By now a request may have been cancelled, or given up for another of its sequences.
        batch = tuple(sequence for sequence in batch if not sequence.job.answer.done())
        if not batch:
            return
        try:
            run = await asyncio.get_running_loop().run_in_executor(self._thread, self._compute, batch)
        except Exception as error:  # noqa: BLE001 - whatever the device raises is the fault of a sequence in the batch
            if len(batch) == 1:
                failure = _failure(batch[0], "the model failed on it")
                failure.__cause__ = error
                self._give_up(batch[0].job, failure)
                return
            half = len(batch) // 2
            await self._run(batch[:half])
            await self._run(batch[half:])
            return
        expected_s = self._cost.seconds(
            run.batch.sequences, run.batch.tokens, run.batch.longest_tokens, run.batch.squares
        )
        actual_s = run.stamps.computed_s - run.stamps.started_s
        self._observer.batch_ran(run.batch, expected_s * self._pace.factor, actual_s)
        self._pace.learn(expected_s, actual_s)
        self._hand_out(batch, run)

    def _hand_out(self, batch: tuple[Sequence, ...], run: _Run) -> None:
        """Give each sequence its own rows; one whose rows are not finite fails alone."""
        pooled = run.outputs.pooled
        hidden = None if run.outputs.hidden is None else run.batch.split(run.outputs.hidden)
        finite = np.ones(len(batch), bool) if pooled is None else np.logical_and.reduce(np.isfinite(pooled), axis=1)
        for place, sequence in enumerate(batch):
            vector = None if pooled is None else pooled[place]
            rows = hidden[place] if hidden is not None and sequence.job.hidden else None
            if not finite[place] or (rows is not None and not np.isfinite(rows).all()):
                self._give_up(sequence.job, _failure(sequence, "the model's answer to it is not finite"))
            else:
                sequence.job.deliver(sequence.index, vector, rows, run.stamps)

    def _compute(self, batch: tuple[Sequence, ...]) -> _Run:
        started_s = self._clock()
        packed = pack([sequence.values for sequence in batch])
        assembled_s = self._clock()
        outputs = self._device.run(packed, hidden=any(sequence.job.hidden for sequence in batch))
        return _Run(packed, outputs, Stamps(started_s, assembled_s, self._clock()))


def _failure(sequence: Sequence, what: str) -> InferenceFailed:
    return InferenceFailed(f"sequence {sequence.index}: {what}", sequence=sequence.index)
