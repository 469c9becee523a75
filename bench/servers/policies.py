"""The batching policies of other servers, as pure functions of the lengths of the waiting sequences.

Each policy runs in its best case: requests of one sequence, and the same code as Headwaiter between policy and graph.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


class Policy(Protocol):
    """A rule that chooses the next batches."""

    def choose(self, lengths: Sequence[int], waited_s: float) -> list[list[int]]:
        """Return the batches to run now, one after another.

        Args:
            lengths: tokens of each waiting sequence, in order of arrival; at least one.
            waited_s: seconds that the first sequence has waited.

        Returns:
            For each batch, the indices of its sequences in `lengths`; no batches to wait for more sequences.
        """
        ...

    @property
    def delay_ms(self) -> int:
        """Longest time that the first sequence waits for others to arrive."""
        ...


@dataclass(frozen=True)
class OneByOne:
    """One batch per sequence, as in servers without batching."""

    delay_ms: int = 0

    def choose(self, lengths: Sequence[int], waited_s: float) -> list[list[int]]:
        """Choose the first sequence."""
        return [[0]]


@dataclass(frozen=True)
class FifoCount:
    """The first sequences up to a maximum number, or fewer after a delay.

    Triton's dynamic batcher without preferred sizes, for models that take padded batches
    (https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/batcher.html:
    `max_batch_size`, `max_queue_delay_microseconds`); mosec (`max_batch_size`, `max_wait_time` of `append_worker`,
    https://mosecorg.github.io/mosec/); LitServe (`max_batch_size`, `batch_timeout`,
    https://lightning.ai/docs/litserve/features/batching).
    """

    max_sequences: int = 32
    delay_ms: int = 2

    def choose(self, lengths: Sequence[int], waited_s: float) -> list[list[int]]:
        """Choose the first sequences once the batch is full or the delay has passed."""
        if len(lengths) < self.max_sequences and waited_s < self.delay_ms / 1e3:
            return []
        return [list(range(min(len(lengths), self.max_sequences)))]


@dataclass(frozen=True)
class EqualLengths:
    """Sequences of one length, so that a batch has no padding.

    Triton's dynamic batcher for inputs that do not allow ragged batches
    (https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/ragged_batching.html).
    Triton ends a batch at the first request of another shape. This policy takes every waiting sequence of the first
    one's length, which gives it larger batches than Triton.
    """

    max_sequences: int = 32
    delay_ms: int = 0

    def choose(self, lengths: Sequence[int], waited_s: float) -> list[list[int]]:
        """Choose the first sequence and others of its length."""
        alike = [place for place, length in enumerate(lengths) if length == lengths[0]]
        if len(alike) < self.max_sequences and waited_s < self.delay_ms / 1e3:
            return []
        return [alike[: self.max_sequences]]


@dataclass(frozen=True)
class FifoTokens:
    """The first sequences whose padded batch stays within a token budget.

    Text Embeddings Inference: `--max-batch-tokens`, 16,384 by default
    (https://huggingface.co/docs/text-embeddings-inference/cli_arguments), counted as the number of sequences
    times the longest length if the backend pads (`core/src/queue.rs` of huggingface/text-embeddings-inference).
    """

    budget_tokens: int = 16_384
    delay_ms: int = 0

    def choose(self, lengths: Sequence[int], waited_s: float) -> list[list[int]]:
        """Choose the first sequences that fit; the first always does."""
        batch: list[int] = []
        longest = 0
        for place, length in enumerate(lengths):
            longest = max(longest, length)
            if batch and (len(batch) + 1) * longest > self.budget_tokens:
                break
            batch.append(place)
        return [batch]


@dataclass(frozen=True)
class SortedWindow:
    """A window of several full batches, sorted by length and cut into batches.

    infinity: `--batch-size`, 32 by default (https://michaelfeil.eu/infinity/), with up to 8 batches sorted together
    (`pop_optimal_batches` in `infinity_emb/inference/queue.py` of michaelfeil/infinity). Sequences that arrive
    later wait until the whole window has run; fewer sequences than two full batches are not sorted.
    """

    max_sequences: int = 32
    max_batches: int = 8
    delay_ms: int = 0

    def choose(self, lengths: Sequence[int], waited_s: float) -> list[list[int]]:
        """Choose all full batches up to the maximum, or one batch that is not full."""
        batches = min(self.max_batches, max(1, len(lengths) // self.max_sequences))
        window = list(range(min(len(lengths), batches * self.max_sequences)))
        if batches > 1:
            window.sort(key=lambda place: lengths[place])
        return [window[start : start + self.max_sequences] for start in range(0, len(window), self.max_sequences)]


_KINDS: dict[str, Callable[..., Policy]] = {
    "one": OneByOne,
    "fifo": FifoCount,
    "equal": EqualLengths,
    "tokens": FifoTokens,
    "sorted": SortedWindow,
}


def read_policy(text: str) -> Policy:
    """Return the policy of a text: a kind and its numbers, such as `fifo:32:2` or `tokens:16384`."""
    kind, *numbers = text.split(":")
    return _KINDS[kind](*map(int, numbers))
