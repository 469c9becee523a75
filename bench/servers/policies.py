"""How others choose the next batch: pure functions of the lengths that wait, in order of arrival.

Each is given its users' best case: requests of one sequence, and nothing between the choice and the graph but what
Headwaiter has there too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


class Policy(Protocol):
    """Chooses batches."""

    def choose(self, lengths: Sequence[int], waited_s: float) -> list[list[int]]:
        """Return the batches to run now, one after the other, before the policy is asked again.

        Args:
            lengths: tokens of the sequences that wait, in order of arrival; at least one.
            waited_s: how long the first has waited.

        Returns:
            Places in `lengths`; no batch at all while it is worth waiting for more.
        """
        ...

    @property
    def delay_ms(self) -> int:
        """How long the first may have to wait for others to come."""
        ...


@dataclass(frozen=True)
class OneByOne:
    """Every sequence alone, as servers without batching do."""

    delay_ms: int = 0

    def choose(self, lengths: Sequence[int], waited_s: float) -> list[list[int]]:
        """Choose the first."""
        return [[0]]


@dataclass(frozen=True)
class FifoCount:
    """The first so many, or fewer after a delay.

    Triton's dynamic batcher without preferred sizes, for models that take padded batches
    (https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/batcher.html:
    `max_batch_size`, `max_queue_delay_microseconds`); mosec (`max_batch_size`, `max_wait_time` of `append_worker`,
    https://mosecorg.github.io/mosec/); LitServe (`max_batch_size`, `batch_timeout`,
    https://lightning.ai/docs/litserve/features/batching).
    """

    max_sequences: int = 32
    delay_ms: int = 2

    def choose(self, lengths: Sequence[int], waited_s: float) -> list[list[int]]:
        """Choose the first ones, once there are enough or the delay has passed."""
        if len(lengths) < self.max_sequences and waited_s < self.delay_ms / 1e3:
            return []
        return [list(range(min(len(lengths), self.max_sequences)))]


@dataclass(frozen=True)
class EqualLengths:
    """Only sequences of one length, so that nothing is padded.

    Triton's dynamic batcher where an input does not allow ragged batches
    (https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/ragged_batching.html).
    Triton ends a batch at the first request of another shape; this takes all of the first one's length, wherever they
    wait, which is kinder.
    """

    max_sequences: int = 32
    delay_ms: int = 0

    def choose(self, lengths: Sequence[int], waited_s: float) -> list[list[int]]:
        """Choose the first and those of its length."""
        alike = [place for place, length in enumerate(lengths) if length == lengths[0]]
        if len(alike) < self.max_sequences and waited_s < self.delay_ms / 1e3:
            return []
        return [alike[: self.max_sequences]]


@dataclass(frozen=True)
class FifoTokens:
    """The first ones, as long as the padded batch keeps within a budget of tokens.

    Text Embeddings Inference: `--max-batch-tokens`, 16,384 by default
    (https://huggingface.co/docs/text-embeddings-inference/cli_arguments), counted as the number of sequences times the
    longest where the backend pads (`core/src/queue.rs` of huggingface/text-embeddings-inference).
    """

    budget_tokens: int = 16_384
    delay_ms: int = 0

    def choose(self, lengths: Sequence[int], waited_s: float) -> list[list[int]]:
        """Choose the first ones that fit; the very first always does."""
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
    """The first so many full batches' worth, sorted by length and cut into batches.

    infinity: `--batch-size`, 32 by default (https://michaelfeil.eu/infinity/), with up to 8 batches sorted together
    (`pop_optimal_batches` in `infinity_emb/inference/queue.py` of michaelfeil/infinity). What comes later waits until
    they have all run; less than two full batches are not sorted.
    """

    max_sequences: int = 32
    max_batches: int = 8
    delay_ms: int = 0

    def choose(self, lengths: Sequence[int], waited_s: float) -> list[list[int]]:
        """Choose as many full batches as wait, or one that is not full."""
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
    """Make a policy of its name and its numbers in order, such as `fifo:32:2` or `tokens:16384`."""
    kind, *numbers = text.split(":")
    return _KINDS[kind](*map(int, numbers))
