"""Lower the batch limits after a batch was too large for memory, and raise them again carefully.

`LimitState` is a pure state machine; `AdaptiveLimits` applies it to batches, and logs its changes.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from headwaiter_server.runtime.errors import one_line
from headwaiter_server.scheduling.cost import BatchLimits, Shape

log = logging.getLogger(__name__)

# The limits are raised by this factor.
_RAISE_FACTOR = 2**0.5
# A raise was right if a batch has run that is larger by this factor than all batches before the raise.
_PROOF_FACTOR = 1.2
# Number of full batches that must succeed before the limits are raised: 16 at first, twice as many after each raise
# that was too much, up to 1,024. So at most about one in a thousand full batches fails.
_FIRST_PATIENCE_BATCHES = 16
_MAX_PATIENCE_BATCHES = 1024


@dataclass(frozen=True)
class LimitState:
    """The current share of the largest batch limits. A parameter `usage` is the size of one batch as a share of them.

    Attributes:
        share: current limits / largest limits.
        proven: the largest usage that fits in memory, as far as is known.
        patience_batches: number of full batches that must succeed before the limits are raised.
        succeeded_batches: number of full batches that succeeded since the share changed.
        proven_at_raise: what was proven before the latest raise; None if no raise is on trial.
    """

    share: float = 1.0
    proven: float = 0.0
    patience_batches: int = _FIRST_PATIENCE_BATCHES
    succeeded_batches: int = 0
    proven_at_raise: float | None = None

    def after_success(self, usage: float, *, full: bool) -> "LimitState":
        """Return the state after a batch that ran; a batch is full if the limits kept it from growing."""
        proven = max(self.proven, usage)
        if not full or (self.share == 1.0 and self.proven_at_raise is None):
            return replace(self, proven=proven)
        if self.succeeded_batches + 1 < self.patience_batches:
            return replace(self, proven=proven, succeeded_batches=self.succeeded_batches + 1)
        right = self.proven_at_raise is not None and proven > _PROOF_FACTOR * self.proven_at_raise
        patience = _FIRST_PATIENCE_BATCHES if right else self.patience_batches
        if self.share == 1.0:
            return LimitState(1.0, proven, patience)
        return LimitState(min(1.0, _RAISE_FACTOR * self.share), proven, patience, proven_at_raise=proven)

    def after_memory_failure(self, usage: float) -> "LimitState":
        """Return the state after a batch that failed only because of its size: each half of the batch has run."""
        # If a batch of a proven size fails, less memory is free than before; only the halves are known to fit.
        proven = self.proven if usage > self.proven else usage / 2
        patience = self.patience_batches
        if self.proven_at_raise is not None:
            patience = min(2 * patience, _MAX_PATIENCE_BATCHES)
        # A batch that was planned under higher limits may fail after they were lowered; it must not raise them.
        return LimitState(min(self.share, max(proven, usage / 2)), proven, patience)


class AdaptiveLimits:
    """The batch limits that hold now.

    Attributes:
        largest: the limits that were measured before serving.
        current: the limits that the next batch must keep.
    """

    def __init__(self, largest: BatchLimits) -> None:
        self.largest = self.current = largest
        self._state = LimitState()
        self._suspected_count = 0

    @contextmanager
    def suspected(self, shape: Shape) -> Iterator[None]:
        """If the size of a failed batch may be the cause, halve the limits inside the block, which bisects the batch.

        Without this, further full batches would fail until the halves of the first one have run.
        """
        suspected = self._usage(shape) >= self._state.share / 2
        self._suspected_count += suspected
        self._update()
        try:
            yield
        finally:
            self._suspected_count -= suspected
            self._update()

    def note_success(self, shape: Shape, *, full: bool) -> None:
        """Learn from a batch that ran; a batch is full if the limits kept it from growing."""
        self._change(self._state.after_success(self._usage(shape), full=full))

    def note_memory_failure(self, shape: Shape, error: Exception) -> None:
        """Learn from a batch that failed only because of its size: each half of the batch has run."""
        self._change(self._state.after_memory_failure(self._usage(shape)))
        log.warning(
            "a batch of %d sequences and %d tokens failed, but its halves did not: the limit is %d tokens now: %s",
            shape.sequences,
            shape.tokens,
            self.largest.scaled(self._state.share).tokens,
            one_line(error),
        )

    def _change(self, state: LimitState) -> None:
        before, self._state = self._state, state
        if state.share != before.share:
            self._update()
        if state.share > before.share:
            log.info("full batches succeed: the limit is %d tokens now", self.current.tokens)

    def _update(self) -> None:
        self.current = self.largest.scaled(self._state.share / (2 if self._suspected_count else 1))

    def _usage(self, shape: Shape) -> float:
        """Return the part of the largest limits that a batch takes; 0 for one sequence, to which no limit applies."""
        if shape.sequences == 1:
            return 0.0
        padded_tokens = shape.sequences * shape.longest_tokens
        return max(
            shape.tokens / self.largest.tokens,
            padded_tokens / self.largest.padded_tokens,
            padded_tokens * shape.longest_tokens / self.largest.cells,
        )
