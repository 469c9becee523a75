"""The outputs of the null model identify the sequences, so that a benchmark notices mixed-up answers."""

import numpy as np

from bench.servers.modified import NullGraph
from headwaiter_server.runtime.packing import pack


def test_a_vector_holds_the_sum_and_the_number_of_the_ids() -> None:
    outputs = NullGraph(4).run(pack([np.array([5, 9]), np.array([3])]), hidden=True)
    assert outputs.pooled is not None
    assert outputs.hidden is not None
    assert outputs.pooled[:, :2].tolist() == [[14, 2], [3, 1]]
    assert (outputs.pooled[:, 2:] != 0).all()
    assert outputs.hidden.tolist() == [[5, 1, 0, 0], [9, 1, 0, 0], [3, 1, 0, 0]]
