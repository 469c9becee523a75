"""The result of a batch, and how its rows are divided among the sequences."""

from dataclasses import dataclass

import numpy as np

from headwaiter_server.runtime.graph import Outputs
from headwaiter_server.runtime.packing import PackedBatch
from headwaiter_server.scheduling.cost import Shape
from headwaiter_server.scheduling.queued_request import Batch, BatchTimes, Sequence, SequenceResult


@dataclass(eq=False, slots=True)
class BatchResult:
    """The result of a batch that ran.

    Attributes:
        sequences: the sequences that ran; expired and cancelled sequences are left out.
        shape: the shape of the batch without the sequences that were left out.
        packed: the packed batch that ran.
        outputs: the outputs of the graph.
    """

    sequences: Batch
    shape: Shape
    packed: PackedBatch
    outputs: Outputs
    times: BatchTimes

    def hand_out_rows(self) -> list[Sequence]:
        """Give each request the rows of its sequences.

        Returns:
            The sequences whose rows are not finite; their requests do not get these rows.
        """
        pooled, hidden, logits = self.outputs.pooled, self.outputs.hidden, self.outputs.logits
        hidden_rows = None if hidden is None else self.packed.split(hidden)
        pooled_finite = None if pooled is None else np.logical_and.reduce(np.isfinite(pooled), axis=1).tolist()
        not_finite = []
        for position, sequence in enumerate(self.sequences):
            result = SequenceResult(
                None if pooled is None else pooled[position],
                hidden_rows[position] if hidden_rows is not None and sequence.request.hidden else None,
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
