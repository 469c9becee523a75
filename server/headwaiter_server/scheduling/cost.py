"""Predict the seconds of a batch: the cost model, and the batch limits."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self


class Shape(NamedTuple):
    """The sizes that determine the cost of a batch.

    Attributes:
        sequences: number of sequences, B.
        tokens: number of tokens, T = Σn.
        longest_tokens: length of the longest sequence, N.
        needed_cells: attention cells without padding, Σn².
        hidden: whether hidden rows are copied to the host. If one sequence needs them, those of all are copied.
    """

    sequences: int
    tokens: int
    longest_tokens: int
    needed_cells: int
    hidden: bool = False

    @classmethod
    def of(cls, lengths: Sequence[int], *, hidden: bool = False) -> Self:
        """Return the shape of a batch of one or more sequences of these lengths."""
        return cls(len(lengths), sum(lengths), max(lengths), sum(length * length for length in lengths), hidden)

    @property
    def padding_ratio(self) -> float:
        """Share of the B·N² attention cells that are padding: 1 − Σn²/(B·N²)."""
        return 1.0 - self.needed_cells / (self.sequences * self.longest_tokens**2)


@dataclass(slots=True)
class CostModel:
    """Predicts the seconds of a batch of B sequences of lengths n: T = Σn tokens, N tokens in the longest.

    A batch takes launch_s + token_s·T + padded_s·B·N + cell_s·(attention cells). Attention that is gathered to a padded
    grid has B·N² cells. An attention kernel of variable lengths has Σn²; pooling is padded nevertheless.

    The launch is the part that does not depend on the size of the batch: reading weights, starting operators. A batch
    whose hidden rows are copied to the host takes hidden_row_s·T more.
    """

    launch_s: float
    token_s: float
    padded_s: float
    cell_s: float
    variable_length: bool = False
    hidden_row_s: float = 0.0

    def scaled(self, factor: float) -> "CostModel":
        """Return a cost model of `factor` times the seconds."""
        return CostModel(
            factor * self.launch_s,
            factor * self.token_s,
            factor * self.padded_s,
            factor * self.cell_s,
            self.variable_length,
            factor * self.hidden_row_s,
        )

    def seconds(
        self, sequences: int, tokens: int, longest_tokens: int, needed_cells: int, hidden: bool = False
    ) -> float:
        """Return the seconds of a batch, given its B, T, N and Σn², and whether hidden rows are copied."""
        padded_tokens = sequences * longest_tokens
        cells = needed_cells if self.variable_length else padded_tokens * longest_tokens
        seconds = self.launch_s + self.token_s * tokens + self.padded_s * padded_tokens + self.cell_s * cells
        return seconds + self.hidden_row_s * tokens if hidden else seconds

    def in_full_batches_s(self, tokens: int, length_tokens: int, budget_tokens: int) -> float:
        """Return the seconds of `tokens` tokens in full batches of sequences of one length."""
        sequences = max(1, budget_tokens // length_tokens)
        full_tokens = sequences * length_tokens
        full_s = self.seconds(sequences, full_tokens, length_tokens, sequences * length_tokens**2)
        return full_s * tokens / full_tokens

    def padding_s(
        self, sequences: int, tokens: int, longest_tokens: int, needed_cells: int, hidden: bool = False
    ) -> float:
        """Return the seconds that a batch spends on padding. `hidden` has no effect; arguments as in `seconds`."""
        padded_tokens = sequences * longest_tokens
        padding_cells = 0 if self.variable_length else padded_tokens * longest_tokens - needed_cells
        return self.padded_s * (padded_tokens - tokens) + self.cell_s * padding_cells


@dataclass(frozen=True)
class BatchLimits:
    """The largest batch of more than one sequence; a single sequence may always run alone.

    Attributes:
        tokens: token budget: most tokens, T.
        cells: most attention cells, B·N²; bounds the memory of the attention scores.
        padded_tokens: most padded tokens, B·N; bounds the memory of padded rows, which pooling needs.
        sequences: most sequences, B, that the kernels of the device take.
        length_step: N is rounded up to a multiple of this number.
    """

    tokens: int
    cells: int
    padded_tokens: int = sys.maxsize
    sequences: int = sys.maxsize
    length_step: int = 1

    def padded_length(self, longest_tokens: int) -> int:
        """Return N of a batch whose longest sequence has this length."""
        return -(-longest_tokens // self.length_step) * self.length_step

    def scaled(self, share: float) -> "BatchLimits":
        """Return limits for a share of the memory, at least 1 each; what has no limit still has none."""
        tokens, cells, padded_tokens = (
            limit if limit == sys.maxsize else max(1, min(limit, int(share * limit)))
            for limit in (self.tokens, self.cells, self.padded_tokens)
        )
        return BatchLimits(tokens, cells, padded_tokens, self.sequences, self.length_step)


@dataclass(frozen=True)
class Calibration:
    """The measured cost of a model on this machine.

    Attributes:
        service_tokens_per_s: tokens/s in full batches of sequences of typical length.
        error_ratio: median of |predicted − measured| / measured over the timed shapes.
        remembered: whether the cost was learnt by an earlier process.
        largest_budget_tokens: the largest token budget that the model may learn; 0 stands for that of `limits`.
    """

    cost: CostModel
    limits: BatchLimits
    service_tokens_per_s: float
    error_ratio: float
    remembered: bool = False
    largest_budget_tokens: int = 0
