"""The result of a batch: how its rows are divided among the sequences, and what the server remembers of the batch."""

from array import array
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwaiter_server.runtime.graph import GraphOutputs
from headwaiter_server.runtime.packing import PackedBatch
from headwaiter_server.scheduling.cost import Shape
from headwaiter_server.scheduling.job import BatchTimes
from headwaiter_server.scheduling.queued_request import Batch, Sequence, SequenceResult

# Number of batches that the server remembers of each model, and lists of all models together.
MAX_BATCHES = 64


@dataclass(eq=False, slots=True)
class BatchResult:
    """The result of a batch that ran.

    Attributes:
        sequences: the sequences that ran; expired and cancelled sequences are left out.
        shape: the shape of the batch without the sequences that were left out.
        packed: the packed batch that ran.
        outputs: the outputs of the graph.
        device: number of the GPU that ran the batch.
    """

    sequences: Batch
    shape: Shape
    packed: PackedBatch
    outputs: GraphOutputs
    times: BatchTimes
    device: int

    def hand_out_rows(self) -> list[Sequence]:
        """Give each request the rows of its sequences.

        Returns:
            The sequences whose rows are not finite; their requests do not get these rows.
        """
        pooled = self.outputs.pooled if self.outputs.sparse is None else self.outputs.sparse
        hidden, logits = self.outputs.hidden, self.outputs.logits
        hidden_rows = None if hidden is None else self.packed.split(hidden)
        pooled_finite = None if pooled is None else _are_finite(pooled)
        not_finite = []
        for position, sequence in enumerate(self.sequences):
            result = SequenceResult(
                None if pooled is None else pooled[position],
                hidden_rows[position] if hidden_rows is not None and sequence.request.job.hidden else None,
                None if logits is None else logits[position],
            )
            sequence.request.note_batch(self.times)
            if (
                (pooled_finite is not None and not pooled_finite[position])
                or (result.hidden is not None and not np.isfinite(result.hidden).all())
                or (result.logits is not None and not np.isfinite(result.logits).all())
            ):
                not_finite.append(sequence)
            else:
                sequence.request.add_result(sequence, result)
        return not_finite


def _are_finite(pooled: NDArray[np.float32] | list[NDArray[Any]]) -> list[bool]:
    """Return whether each pooled vector is finite; sparse vectors are lists of entries."""
    if isinstance(pooled, list):
        return [bool(np.isfinite(entries["value"]).all()) for entries in pooled]
    finite: list[bool] = np.logical_and.reduce(np.isfinite(pooled), axis=1).tolist()
    return finite


@dataclass(eq=False, slots=True)
class RecentBatch:
    """A batch that ran; holds neither values nor ids of its sequences.

    Attributes:
        lengths: number of tokens of each sequence.
        request_numbers: for each sequence, the number of its request in this process.
        end_s: when the batch ended, on the scheduler's clock.
        predicted_s: predicted run time.
        measured_s: measured run time.
    """

    lengths: "array[int]"
    request_numbers: "array[int]"
    end_s: float
    predicted_s: float
    measured_s: float


def recent_batch(result: BatchResult, predicted_s: float) -> RecentBatch:
    """Return what the server remembers of a batch."""
    # Arrays, because lists would hold an object for each number.
    lengths = array("I", [sequence.length_tokens for sequence in result.sequences])
    numbers = array("Q", [sequence.request.number for sequence in result.sequences])
    run = result.times.run
    return RecentBatch(lengths, numbers, run.end_s, predicted_s, run.seconds)
