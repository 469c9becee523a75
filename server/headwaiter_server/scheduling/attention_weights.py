"""Runs what Attend asks for, beside the device: one sequence at a time, in a thread of its own."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headwaiter_server.errors import DeadlineExceeded, InferenceFailed, Overloaded, Unavailable
from headwaiter_server.runtime.attention_weights import AttentionSelection, AttentionWeights

# Few: each may take seconds, and whoever waits longer than a moment had better ask again.
MAX_WAITING = 8
# Stands for the duration of a run until there was one.
_USUAL_RUN_S = 1.0


class Instrument(Protocol):
    """What looks at a sequence; called from a thread of its own, one sequence at a time."""

    def run(self, sequence: NDArray[np.generic], selection: AttentionSelection) -> AttentionWeights:
        """Look at one sequence."""
        ...


class Observer(Protocol):
    """Hears of what happens to sequences."""

    def expired(self, sequences: int) -> None:
        """Sequences were dropped, their deadline past."""


@dataclass(frozen=True, eq=False)
class Attended:
    """The answer to a request.

    Attributes:
        attention: what was asked for.
        compute_s: how long the graph ran.
        computed_s: when it was done, on the attender's clock.
    """

    attention: AttentionWeights
    compute_s: float
    computed_s: float


class Attender:
    """Queues sequences and runs them one after another; the graph is loaded when the first comes.

    Expired and cancelled sequences never run.
    """

    def __init__(
        self, load: Callable[[], Instrument], observer: Observer, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._load = load
        self._observer = observer
        self._clock = clock
        self._graph: Instrument | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="attend")
        # Held by a request until its run is over, though its caller may have gone: a thread cannot be stopped.
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._latest_run_s = _USUAL_RUN_S
        self._draining = False

    async def submit(
        self, sequence: NDArray[np.generic], selection: AttentionSelection, *, deadline_s: float = float("inf")
    ) -> Attended:
        """Queue a sequence, token ids [n] or features [n, d_in], and return when it has its answer.

        Args:
            sequence: what to look at.
            selection: what to show of it.
            deadline_s: on the attender's clock.

        Raises:
            Overloaded: enough others wait.
            Unavailable: the server is draining.
            DeadlineExceeded: the deadline passed while it waited.
            InferenceFailed: the model failed on it, or cannot be loaded.
        """
        self._admit()
        await self._wait_for_turn(deadline_s)
        return await asyncio.shield(asyncio.create_task(self._take_turn(sequence, selection, deadline_s)))

    def drain(self) -> None:
        """Refuse new work; what was admitted is still answered."""
        self._draining = True

    def _admit(self) -> None:
        if self._draining:
            raise Unavailable("the server is shutting down: send the request to another replica")
        if self._waiting >= MAX_WAITING:
            wait_s = (self._waiting + 1) * self._latest_run_s
            raise Overloaded(
                f"{MAX_WAITING} requests for attention wait already: try again in {wait_s:.2f} s",
                retry_after_s=wait_s,
                limit=MAX_WAITING,
            )

    async def _wait_for_turn(self, deadline_s: float) -> None:
        self._waiting += 1
        try:
            await self._turn.acquire()
        except asyncio.CancelledError:
            if self._clock() >= deadline_s:
                self._observer.expired(1)
            raise
        finally:
            self._waiting -= 1

    async def _take_turn(
        self, sequence: NDArray[np.generic], selection: AttentionSelection, deadline_s: float
    ) -> Attended:
        in_thread = partial(asyncio.get_running_loop().run_in_executor, self._thread)
        try:
            if self._graph is None:
                self._graph = await in_thread(self._open)
            if self._clock() >= deadline_s:
                self._observer.expired(1)
                raise DeadlineExceeded("the deadline passed before the request's turn came")
            return await in_thread(self._run, self._graph, sequence, selection)
        finally:
            self._turn.release()

    def _open(self) -> Instrument:
        try:
            return self._load()
        except Exception as error:
            raise InferenceFailed("the bundle's graph of attention weights cannot be loaded") from error

    def _run(self, graph: Instrument, sequence: NDArray[np.generic], selection: AttentionSelection) -> Attended:
        started_s = self._clock()
        try:
            attention = graph.run(sequence, selection)
        except Exception as error:
            raise InferenceFailed("sequence 0: the model failed on it", sequence=0) from error
        if not all(
            np.isfinite(values).all() for values in (attention.weights, attention.context) if values is not None
        ):
            raise InferenceFailed("sequence 0: the model's answer to it is not finite", sequence=0)
        computed_s = self._clock()
        self._latest_run_s = computed_s - started_s
        return Attended(attention, computed_s - started_s, computed_s)
