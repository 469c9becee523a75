"""The result of a batch, and how its rows are divided among the sequences."""

from dataclasses import dataclass

import numpy as np

from headwaiter_server.runtime.graph import Outputs
from headwaiter_server.runtime.packing import PackedBatch
from headwaiter_server.scheduling.cost import Shape
from headwaiter_server.scheduling.queued_request import Batch, BatchTimes, Sequence


@dataclass(eq=False, slots=True)
class BatchResult:
    """The result of a batch that ran.

    Attributes:
        sequences: the sequences that ran; expired and cancelled sequences are left out.
        shape: of these sequences.
        packed: these sequences as they were packed.
        outputs: the device's answer.
        times: when the batch ran, and for how long.
    """

    sequences: Batch
    shape: Shape
    packed: PackedBatch
    outputs: Outputs
    times: BatchTimes

    def hand_out_rows(self) -> list[Sequence]:
        """Give each request the rows of its sequences.

        Returns:
            The sequences whose rows are not finite; their requests get no rows of them.
        """
        pooled, hidden = self.outputs.pooled, self.outputs.hidden
        hidden_rows = None if hidden is None else self.packed.split(hidden)
        pooled_finite = None if pooled is None else np.logical_and.reduce(np.isfinite(pooled), axis=1)
        not_finite = []
        for place, sequence in enumerate(self.sequences):
            vector = None if pooled is None else pooled[place]
            rows = hidden_rows[place] if hidden_rows is not None and sequence.request.hidden else None
            if (pooled_finite is not None and not pooled_finite[place]) or (
                rows is not None and not np.isfinite(rows).all()
            ):
                not_finite.append(sequence)
            else:
                sequence.request.add_result(sequence.index, vector, rows, self.times)
        return not_finite
