"""Queue the requests for attention weights, and run one sequence at a time in a thread beside the device."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto.rules.errors import InferenceFailed, Overloaded, Unavailable
from headwaiter_server.runtime.attention_weights import AttentionSelection, AttentionWeights
from headwaiter_server.runtime.errors import BundleChanged
from headwaiter_server.scheduling.job import Interval
from headwaiter_server.scheduling.request_errors import (
    deadline_passed,
    inference_failed,
    is_late,
    output_not_finite,
    shutting_down,
)

# A run may take seconds. A longer queue would hold requests that another replica could answer sooner.
MAX_WAITING = 8
# Assumed duration of a run until one has been measured.
_ASSUMED_RUN_S = 1.0


# Computes the attention weights of one sequence.
_Compute = Callable[[NDArray[np.generic], AttentionSelection], AttentionWeights]


class AttentionWeightsQueue:
    """Runs sequences one after another; loads the model when the first sequence arrives.

    Expired and cancelled sequences never run.
    """

    def __init__(
        self,
        load: Callable[[], _Compute],
        note_expired: Callable[[int], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start an empty queue.

        Args:
            load: loads the model, and returns the function that computes the attention weights of one sequence.
            note_expired: called with 1 for each sequence that was dropped because its deadline had passed.
            clock: the clock of the deadlines.
        """
        self._load, self._note_expired, self._clock = load, note_expired, clock
        self._compute: _Compute | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="attend")
        # A request holds the lock until its run is over, even if its caller has gone: a thread cannot be interrupted.
        self._running = asyncio.Lock()
        self._waiting_count = 0
        self._latest_run_s = _ASSUMED_RUN_S
        self._draining = False

    async def submit(
        self,
        sequence: NDArray[np.generic],
        selection: AttentionSelection,
        *,
        deadline_s: float = float("inf"),
        on_queued: Callable[[], None] = lambda: None,
    ) -> tuple[AttentionWeights, Interval]:
        """Queue a sequence, and return its attention weights, and when the sequence ran on the queue's clock.

        Args:
            sequence: token ids [n] or features [n, d_in].
            selection: the layers and heads to return.
            deadline_s: on the queue's clock.
            on_queued: called when the request is admitted; an error before that is a refusal.

        Raises:
            Overloaded: the queue is full.
            Unavailable: the server is draining, or the bundle was replaced before the first sequence arrived.
            DeadlineExceeded: the deadline passed while the sequence waited.
            InferenceFailed: the model failed on the sequence, or cannot be loaded.
        """
        self.admit()
        on_queued()
        await self._wait_for_earlier_runs(deadline_s)
        run = asyncio.create_task(self._run(sequence, selection, deadline_s))
        # asyncio logs an error that nobody retrieves: here, the error of a run whose caller has gone.
        run.add_done_callback(lambda run: run.cancelled() or run.exception())
        return await asyncio.shield(run)

    def drain(self) -> None:
        """Refuse new requests; admitted requests are still answered."""
        self._draining = True

    def admit(self) -> None:
        """Refuse a request that `submit` would refuse now.

        Raises:
            Overloaded: the queue is full.
            Unavailable: the server is draining.
        """
        if self._draining:
            raise shutting_down()
        if self._waiting_count >= MAX_WAITING:
            wait_s = (self._waiting_count + 1) * self._latest_run_s
            raise Overloaded(
                f"{self._waiting_count} requests for attention weights are waiting; the server queues at most "
                f"{MAX_WAITING}: try again in {wait_s:.2f} s",
                retry_after_s=wait_s,
                limit=MAX_WAITING,
            )

    async def _wait_for_earlier_runs(self, deadline_s: float) -> None:
        self._waiting_count += 1
        arrived_s = self._clock()
        try:
            await self._running.acquire()
        except asyncio.CancelledError:
            if is_late(self._clock(), arrived_s, deadline_s):
                self._note_expired(1)
            raise
        finally:
            self._waiting_count -= 1

    async def _run(
        self, sequence: NDArray[np.generic], selection: AttentionSelection, deadline_s: float
    ) -> tuple[AttentionWeights, Interval]:
        run_in_thread = partial(asyncio.get_running_loop().run_in_executor, self._thread)
        try:
            begun_s = self._clock()
            if self._compute is None:
                self._compute = await run_in_thread(self._load_model)
            if self._clock() >= deadline_s:
                self._note_expired(1)
                raise deadline_passed()
            attention, run = await run_in_thread(self._timed, self._compute, sequence, selection)
            # The first request has waited for the graph, and not in the queue.
            return attention, Interval(begun_s, run.end_s)
        finally:
            self._running.release()

    def _load_model(self) -> _Compute:
        try:
            return self._load()
        except BundleChanged as error:
            raise Unavailable(
                "the bundle was replaced after the server had started: try another replica, or restart the server"
            ) from error
        except Exception as error:
            raise InferenceFailed(
                "the bundle's graph of attention weights cannot be loaded: look for the cause in the server's log"
            ) from error

    def _timed(
        self, compute: _Compute, sequence: NDArray[np.generic], selection: AttentionSelection
    ) -> tuple[AttentionWeights, Interval]:
        started_s = self._clock()
        try:
            attention = compute(sequence, selection)
        except Exception as error:
            raise inference_failed(0, error) from error
        if not all(
            np.isfinite(values).all() for values in (attention.weights, attention.context) if values is not None
        ):
            raise output_not_finite(0)
        run = Interval(started_s, self._clock())
        self._latest_run_s = run.seconds
        return attention, run
