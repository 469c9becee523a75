"""Lower the batch limits after a batch was too large for memory, raise them again carefully, and follow the cost."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from headwaiter_server.runtime.errors import one_line
from headwaiter_server.scheduling.cost import BatchLimits, CostModel, Shape, next_budget

log = logging.getLogger(__name__)

# The limits are raised by this factor.
_RAISE_FACTOR = 2**0.5
# Number of large batches that must succeed before the limits are raised: 16 after the first failure, twice as many
# after each further one, up to 1,024. So in the long run, at most about one in a thousand large batches fails.
_FIRST_PATIENCE_BATCHES = 16
_MAX_PATIENCE_BATCHES = 1024
# The token budget may change after this number of batches of at least this share of it: smaller batches do not tell how
# long full ones take.
_BUDGET_BATCHES, _BUDGET_SHARE = 32, 0.25


class AdaptiveLimits:
    """The batch limits that hold now. A batch is *large* if it takes at least half of them.

    Args:
        largest: the limits that hold at first.
        model: names the model in the log.
        largest_budget_tokens: the largest token budget that may follow from the batches that run; 0 stands for that of
            `largest`.

    Attributes:
        largest: the limits without any failure for want of memory.
        current: the limits that the next batch must keep.
    """

    def __init__(self, largest: BatchLimits, model: str = "the model", largest_budget_tokens: int = 0) -> None:
        self.largest = self.current = largest
        self._model, self._largest_budget_tokens = model, max(largest.tokens, largest_budget_tokens)
        self._budget_batches = 0
        # The current share of the largest limits.
        self._share = 1.0
        self._patience_batches = _FIRST_PATIENCE_BATCHES // 2
        # Number of large batches that have succeeded since the share changed.
        self._succeeded_batches = 0
        self._halving_count = 0

    def follow_cost(self, cost: CostModel, ran: Shape) -> None:
        """Count a batch that ran; after enough of them, take the token budget that follows from the learnt cost."""
        budget = self.largest.tokens
        self._budget_batches += ran.tokens >= _BUDGET_SHARE * budget
        if self._budget_batches == _BUDGET_BATCHES:
            self._budget_batches = 0
            tokens = next_budget(cost, budget, self._largest_budget_tokens)
            self.largest = replace(self.largest, tokens=tokens, padded_tokens=max(self.largest.padded_tokens, tokens))
            self._update()

    @contextmanager
    def halved_for(self, shape: Shape) -> Iterator[None]:
        """Halve the limits while the block bisects a failed batch, if the batch may have been too large.

        Without this, further large batches would fail until the halves of the first one have run.
        """
        halves = self._is_large(shape)
        self._halving_count += halves
        self._update()
        try:
            yield
        finally:
            self._halving_count -= halves
            self._update()

    def note_success(self, shape: Shape) -> None:
        """Learn from a batch that ran: raise the limits after many large batches."""
        if self._share == 1.0 or not self._is_large(shape):
            return
        self._succeeded_batches += 1
        if self._succeeded_batches == self._patience_batches:
            self._change(min(1.0, _RAISE_FACTOR * self._share))
            log.info("large batches of %s succeed: the limit is %d tokens now", self._model, self.current.tokens)

    def note_memory_failure(self, shape: Shape, error: Exception) -> None:
        """Learn from a batch that was too large: lower the limits to half of its size, because its halves have run."""
        self._patience_batches = min(2 * self._patience_batches, _MAX_PATIENCE_BATCHES)
        # A batch that was planned under higher limits may fail after they were lowered; it must not raise them.
        self._change(min(self._share, self._usage(shape) / 2))
        log.warning(
            "a batch of %s, %d sequences and %d tokens, failed, but its halves did not: the limit is %d tokens now: %s",
            self._model,
            shape.sequences,
            shape.tokens,
            self.largest.scaled(self._share).tokens,
            one_line(error),
        )

    def _change(self, share: float) -> None:
        self._share, self._succeeded_batches = share, 0
        self._update()

    def _update(self) -> None:
        self.current = self.largest.scaled(self._share / (2 if self._halving_count else 1))

    def _is_large(self, shape: Shape) -> bool:
        return self._usage(shape) >= self._share / 2

    def _usage(self, shape: Shape) -> float:
        """Return the part of the largest limits that a batch takes; 0 for one sequence, to which no limit applies."""
        if shape.sequences == 1:
            return 0.0
        padded_length = self.largest.padded_length(shape.longest_tokens)
        padded_tokens = shape.sequences * padded_length
        return max(
            shape.tokens / self.largest.tokens,
            padded_tokens / self.largest.padded_tokens,
            padded_tokens * padded_length / self.largest.cells,
        )
