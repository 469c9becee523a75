"""The batching policies of other servers, as pure functions of the lengths of the waiting sequences.

Each policy runs in its best case: requests hold one sequence, and all code except the policy is Headwaiter's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Policy:
    """A rule that chooses the next batches.

    Attributes:
        choose: takes the tokens of each waiting sequence, in order of arrival, and the seconds that the first has
            waited. Returns the batches to run now, one after another, as indices of the sequences; an empty list to
            wait for more sequences.
        delay_ms: longest time that the first sequence waits for others to arrive.
    """

    choose: Callable[[Sequence[int], float], list[list[int]]]
    delay_ms: int = 0


def one_by_one() -> Policy:
    """Return a policy with one batch per sequence, as in servers without batching."""
    return Policy(lambda lengths, waited_s: [[0]])


def fifo_by_count(max_sequences: int = 32, delay_ms: int = 2) -> Policy:
    """Return a policy that takes the first sequences up to a maximum number, or fewer after a delay.

    Servers with this policy: Triton's dynamic batcher without preferred sizes, for models that take padded batches
    (https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/batcher.html:
    `max_batch_size`, `max_queue_delay_microseconds`); mosec (`max_batch_size`, `max_wait_time` of `append_worker`,
    https://mosecorg.github.io/mosec/); LitServe (`max_batch_size`, `batch_timeout`,
    https://lightning.ai/docs/litserve/features/batching).
    """

    def choose(lengths: Sequence[int], waited_s: float) -> list[list[int]]:
        if len(lengths) < max_sequences and waited_s < delay_ms / 1e3:
            return []
        return [list(range(min(len(lengths), max_sequences)))]

    return Policy(choose, delay_ms)


def equal_lengths(max_sequences: int = 32, delay_ms: int = 0) -> Policy:
    """Return a policy that takes sequences of one length, so that a batch has no padding.

    Triton's dynamic batcher has a similar policy for inputs that do not allow ragged batches
    (https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/ragged_batching.html).
    Triton ends a batch at the first request of another shape. This policy takes all waiting sequences that are as long
    as the first one, so its batches are larger than Triton's.
    """

    def choose(lengths: Sequence[int], waited_s: float) -> list[list[int]]:
        equal = [index for index, length in enumerate(lengths) if length == lengths[0]]
        if len(equal) < max_sequences and waited_s < delay_ms / 1e3:
            return []
        return [equal[:max_sequences]]

    return Policy(choose, delay_ms)


def fifo_by_tokens(budget_tokens: int = 16_384) -> Policy:
    """Return a policy that takes the first sequences whose padded batch stays within a token budget.

    This is the policy of Text Embeddings Inference: `--max-batch-tokens` is 16,384 by default
    (https://huggingface.co/docs/text-embeddings-inference/cli_arguments), and limits the number of sequences times the
    longest length if the backend pads (`core/src/queue.rs` of huggingface/text-embeddings-inference).
    """

    def choose(lengths: Sequence[int], waited_s: float) -> list[list[int]]:
        batch: list[int] = []
        longest = 0
        for index, length in enumerate(lengths):
            longest = max(longest, length)
            if batch and (len(batch) + 1) * longest > budget_tokens:
                break
            batch.append(index)
        return [batch]

    return Policy(choose)


def sorted_window(max_sequences: int = 32, max_batches: int = 8) -> Policy:
    """Return a policy that sorts a window of several full batches by length and cuts it into batches.

    This is the policy of infinity: `--batch-size` is 32 by default (https://michaelfeil.eu/infinity/), and up to 8
    batches are sorted together (`pop_optimal_batches` in `infinity_emb/inference/queue.py` of michaelfeil/infinity).
    Later sequences wait until the whole window has run. Fewer sequences than two full batches are not sorted.
    """

    def choose(lengths: Sequence[int], waited_s: float) -> list[list[int]]:
        batches = min(max_batches, max(1, len(lengths) // max_sequences))
        window = list(range(min(len(lengths), batches * max_sequences)))
        if batches > 1:
            window.sort(key=lambda index: lengths[index])
        return [window[start : start + max_sequences] for start in range(0, len(window), max_sequences)]

    return Policy(choose)


_KINDS: dict[str, Callable[..., Policy]] = {
    "one": one_by_one,
    "fifo": fifo_by_count,
    "equal": equal_lengths,
    "tokens": fifo_by_tokens,
    "sorted": sorted_window,
}


def read_policy(text: str) -> Policy:
    """Return the policy of a text: a kind and its numbers, such as `fifo:32:2` or `tokens:16384`."""
    kind, *numbers = text.split(":")
    return _KINDS[kind](*map(int, numbers))
